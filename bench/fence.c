/* An allocator for finding out who touches memory that is not theirs: preloaded, it serves posix_memalign, which is where
 * PyTorch's tensors and oneDNN's scratch memory on CPU come from.
 *
 *     | size | no access | canary | what was asked for | canary | no access |
 *
 * An allocation ends at a page without access, as far as its alignment lets it; the bytes in between hold a canary, which
 * is looked at when it is freed. Freed memory is without access too and is never given out again. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, AROUND = 3 * PAGE, CANARY = 0xC5, EXIT_CODE = 97 };
static const size_t ROOM = (size_t)1 << 42;

static char *region;
static _Atomic uintptr_t next;

__attribute__((constructor)) static void reserve(void) {
    region = mmap(NULL, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) _exit(EXIT_CODE);
    next = (uintptr_t)region;
}

struct header {
    size_t size, pages;
};

int posix_memalign(void **place, size_t alignment, size_t size) {
    if (!region || alignment > PAGE) {
        int (*libc)(void **, size_t, size_t) = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
        return libc(place, alignment, size);
    }
    size_t rounded = (size + alignment - 1) / alignment * alignment;
    size_t pages = rounded ? (rounded + PAGE - 1) / PAGE : 1;
    uintptr_t start = atomic_fetch_add(&next, pages * PAGE + AROUND);
    if (start + pages * PAGE + AROUND > (uintptr_t)region + ROOM) return ENOMEM;
    char *data = (char *)start + 2 * PAGE;
    if (mprotect((char *)start, PAGE, PROT_READ | PROT_WRITE) || mprotect(data, pages * PAGE, PROT_READ | PROT_WRITE))
        return ENOMEM;
    *(struct header *)start = (struct header){size, pages};
    memset(data, CANARY, pages * PAGE);
    *place = data + pages * PAGE - (rounded ? rounded : alignment);
    return 0;
}

static void check(const char *from, const char *to) {
    for (; from < to; from++)
        if ((unsigned char)*from != CANARY) _exit(EXIT_CODE);
}

void free(void *place) {
    static void (*libc)(void *);
    if (!region || (char *)place < region || (char *)place >= region + ROOM) {
        if (!libc) libc = (void (*)(void *))dlsym(RTLD_NEXT, "free");
        libc(place);
        return;
    }
    char *data = (char *)((uintptr_t)place / PAGE * PAGE);
    struct header *header = (struct header *)(data - 2 * PAGE);
    size_t pages = header->pages;
    check(data, place);
    check((char *)place + header->size, data + pages * PAGE);
    madvise(header, pages * PAGE + AROUND, MADV_DONTNEED);
    mprotect(header, pages * PAGE + AROUND, PROT_NONE);
}
