"""The parts that stages are made of: bytes, links, balance, forecasts and the simulation."""

from __future__ import annotations

import itertools
import json
import queue
import random
import threading
import time
import weakref

import pytest
import torch
from torch.nn.functional import avg_pool2d

from stdl_engine.memory.spikes import Bits, Counts, keep, restore
from stdl_engine.parallel import ParallelRule, Ranks, balanced
from stdl_engine.parallel.faults import LinkError
from stdl_engine.parallel.forecast import forecast
from stdl_engine.parallel.links import Message, Receiver, Sender
from stdl_engine.parallel.ranks import use_own_gpu
from stdl_engine.parallel.simulate import Machine, layout, pipeline_seconds
from stdl_engine.parallel.wire import decode, encode
from stdl_engine.plan import main as plan

from ..rules.nets import batch, make, small

CPU = torch.device("cpu")


def spikes(*shape: int) -> torch.Tensor:
    return (torch.rand(shape) < 0.3).float()


@pytest.mark.parametrize(
    ("values", "size"),
    [
        (spikes(3, 5, 7, 7), 3 * 5 * 7 * 7),
        (spikes(3, 5, 7, 7).contiguous(memory_format=torch.channels_last), 3 * 5 * 7 * 7),
        (avg_pool2d(spikes(2, 3, 8, 8), 2), 2 * 3 * 4 * 4),
        (avg_pool2d(spikes(2, 3, 8, 8), 3, 2, 1), 2 * 3 * 4 * 4),
        (avg_pool2d(spikes(2, 3, 8, 8), 2).bfloat16(), 2 * 3 * 4 * 4),
        (torch.randn(2, 3, 5), 4 * 30),
        (torch.tensor([-0.0, 1.0]), 8),  # a byte has no zero with a sign
        (torch.tensor([256.0, 1.0]), 8),
        (torch.arange(5), 40),
        (torch.zeros(0, dtype=torch.int64), 0),
    ],
)
def test_a_tensor_arrives_as_it_left(values, size):
    wire = encode(values)
    back = decode(wire.payload, json.loads(json.dumps(wire.meta)), CPU)
    assert wire.payload.numel() == size
    assert (back.shape, back.stride(), back.dtype) == (values.shape, values.stride(), values.dtype)
    assert back.contiguous().view(torch.uint8).tolist() == values.contiguous().view(torch.uint8).tolist()


def test_small_forms_stay_small():
    model, (x, _) = small(), batch()
    with torch.no_grad():
        model[0].neuron.memory_form = "lean"
        kept = keep(model[0](x))
    assert isinstance(kept, Bits)
    wire = encode(kept)
    assert wire.payload.numel() == kept.small.numel() < wire.dense_bytes / 30
    back = decode(wire.payload, wire.meta, CPU)
    assert isinstance(back, Bits)
    assert torch.equal(restore(back), restore(kept))
    counts = Counts(torch.randint(9, (2, 3, 4, 4), dtype=torch.uint8), torch.float32)
    wire = encode(counts)
    assert wire.payload.numel() == 2 * 3 * 4 * 4
    assert torch.equal(restore(decode(wire.payload, wire.meta, CPU)), restore(counts))


class Pipe:
    """Bytes from one thread to another, as slow as is asked for, until it breaks."""

    def __init__(self, seconds_per_byte: float = 0.0, breaks_after: int | None = None) -> None:
        self.queue: queue.Queue = queue.Queue(maxsize=1)
        self.seconds_per_byte, self.left = seconds_per_byte, breaks_after

    def send(self, payload):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("Connection closed by peer")
        time.sleep(self.seconds_per_byte * payload.numel())
        self.queue.put(payload.clone())

    def receive(self, payload):
        payload.copy_(self.queue.get())


def message(number: int) -> Message:
    return Message("train", [encode(torch.full((1000,), float(number))), encode(torch.zeros(0))], {"T": number})


def send_until_it_blocks(sender: Sender) -> int:
    for number in range(10):
        try:
            sender.send(message(number))
        except LinkError:  # nothing has moved in time
            return number
    return 10


def test_messages_arrive_in_order_a_bounded_number_ahead():
    pipe = Pipe()
    sender = Sender(pipe, ahead=2, timeout=0.3)
    sent = send_until_it_blocks(sender)
    assert sent == 2
    receiver = Receiver(pipe, timeout=10)
    for number in range(sent):
        got = receiver.receive()
        assert (got.kind, got.values) == ("train", {"T": number})
        assert float(decode(got.wires[0].payload, got.wires[0].meta, CPU)[0]) == number
    sender.close()
    receiver.close()
    assert sender.traffic.payload_bytes == receiver.traffic.payload_bytes == 1000 * sent
    assert receiver.traffic.dense_bytes == 4000 * sent


def test_links_keep_no_message_that_has_gone():
    pipe = Pipe()
    sender, receiver = Sender(pipe, timeout=10), Receiver(pipe, timeout=10)
    leaving = message(1)
    sent = weakref.ref(leaving.wires[0].payload)
    sender.send(leaving)
    del leaving
    arrived = receiver.receive()
    received = weakref.ref(arrived.wires[0].payload)
    sender.flush()
    del arrived
    assert _soon(lambda: sent() is None and received() is None)
    sender.close()
    receiver.close()


def _soon(test) -> bool:
    deadline = time.monotonic() + 10
    while not test() and time.monotonic() < deadline:
        time.sleep(0.01)
    return test()


def test_a_slow_link_is_hidden_behind_the_work():
    """Both sides compute for longer than a message takes: neither waits for the wire, but for the first message."""
    batches, work, wire = 8, 0.1, 0.08
    pipe = Pipe(seconds_per_byte=wire / 1300)  # of a message with its header
    sender, receiver = Sender(pipe, ahead=2, timeout=20), Receiver(pipe, timeout=20)

    def next_stage():
        for _ in range(batches):
            receiver.receive()
            time.sleep(work)

    thread = threading.Thread(target=next_stage)
    thread.start()
    for number in range(batches):
        time.sleep(work)
        sender.send(message(number))
    thread.join()
    sender.close()
    receiver.close()
    filling = work + wire  # until the first message is there
    assert sender.traffic.waited_seconds + receiver.traffic.waited_seconds - filling < batches * wire / 2


def test_a_broken_link_says_so():
    sender = Sender(Pipe(breaks_after=0), ahead=1, timeout=10)
    sender.send(message(0))
    with pytest.raises(LinkError, match="Connection closed by peer"):
        sender.send(message(1))


def test_balance_is_that_of_an_exhaustive_search():
    draw = random.Random(0)
    for count, stages in ((1, 1), (5, 2), (7, 3), (8, 5), (6, 6)):
        for _ in range(20):
            work = [draw.randint(1, 20) for _ in range(count)]
            cuts = itertools.combinations(range(1, count), stages - 1)
            best = min(max(sum(work[a:b]) for a, b in itertools.pairwise((0, *cut, count))) for cut in cuts)
            runs = balanced(work, stages)
            assert [run.start for run in runs] == [0, *(run.stop for run in runs[:-1])]
            assert (runs[-1].stop, len(runs)) == (count, stages)
            assert max(sum(work[run.start : run.stop]) for run in runs) == best


def test_balance_keeps_to_what_fits():
    assert balanced([1, 1, 1, 9], 2, fits=lambda run: len(run) <= 2) == [range(0, 2), range(2, 4)]
    with pytest.raises(ValueError, match="use more stages"):
        balanced([1, 1, 1], 2, fits=lambda run: len(run) <= 1)
    with pytest.raises(ValueError, match="3 stages were asked for, and the network is cut into 2 subnetworks"):
        balanced([1, 1], 3)


def test_a_balanced_pipeline_has_no_bubble_once_it_is_full():
    for stages, batches in ((1, 5), (2, 7), (4, 20)):
        assert pipeline_seconds([1.0] * stages, [0.0] * (stages - 1), batches) == batches + stages - 1
    slow = pipeline_seconds([1.0, 1.0], [0.9], 100)  # a link that is almost as slow as the work is hidden
    assert slow == pytest.approx(100 + 1 + 0.9)
    assert pipeline_seconds([1.0, 3.0, 1.0], [0.0, 0.0], 100) == pytest.approx(302)  # the slowest stage decides
    assert pipeline_seconds([1.0, 1.0], [3.0], 100) > 295  # and so does a link that is slower


def test_what_limits_a_layout():
    machine = Machine(multiply_adds=1e12, bandwidth=1e9, latency=0.0)
    even = layout([1e12, 1e12], [1e6, 0], [4e6, 4e6], 64, 1, machine)
    assert (even.limit, even.ranks) == ("work", 2)
    assert even.speedup == pytest.approx(2)
    assert layout([1e12, 3e12], [1e6, 0], [4e6, 4e6], 64, 1, machine).limit == "uneven stages"
    assert layout([1e12, 1e12], [1e10, 0], [4e6, 4e6], 64, 1, machine).limit == "link between stages"
    assert layout([1e12, 1e12], [1e6, 0], [1e10, 1e10], 64, 8, machine).limit == "exchange of gradients"


def test_a_forecast_is_what_a_stage_does():
    x, _ = batch("vgg11")
    rule = make("ell", small("vgg11"), x)
    found = forecast(rule, 3, 2)
    assert [number for stage in found.stages for number in stage.subnetworks] == list(range(8))
    assert sum(stage.work for stage in found.stages) == pytest.approx(1)
    trained = sum(p.numel() for part in rule.subnetworks for p in part.parameters())
    assert sum(stage.parameters for stage in found.stages) == trained
    assert 1 < found.speedup <= 3
    for before, stage in itertools.pairwise(found.stages):
        assert before.sent_bytes < before.dense_bytes / 3
        assert stage.in_flight_bytes >= before.sent_bytes


@pytest.mark.parametrize(("local", "gpu"), [("0", 0), ("1", 1), ("3", 1)])
def test_each_process_of_a_machine_has_its_own_gpu(local, gpu, monkeypatch):
    taken = []
    monkeypatch.setenv("LOCAL_RANK", local)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    use_own_gpu()
    assert taken == [gpu]


def test_the_first_stage_reads_the_data():
    rule = ParallelRule(make("bptt", small(), batch()[0]), Ranks())
    for call in (lambda: rule.step(None, None, 2), lambda: rule.predict(None, 2), rule.has_more):
        with pytest.raises(ValueError, match=r"the first stage reads the data: .*\.$"):
            call()


def test_plan_of_stages(capsys):
    options = ["digits", "--width", "0.0625", "--stages", "2", "--ranks", "4", "--json"]
    assert plan(options) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ranks"], answer["data_ranks"], answer["batch_per_rank"]) == (4, 2, 25)
    assert [len(stage["subnetworks"]) for stage in answer["stages"]] in ([1, 2], [2, 1])
    first, last = answer["stages"]
    assert first["bptt_bytes"] == 2 * first["dense_bytes"] > 6 * first["sent_bytes"] > 0
    assert last["sent_bytes"] == 0
    assert answer["speedup_by_balance"] == pytest.approx(2 / max(stage["work"] for stage in answer["stages"]))
    assert plan(options[:-1]) == 0
    assert "2 stages × 2 data ranks" in capsys.readouterr().out


def test_plan_of_scaling(capsys):
    assert plan(["digits", "--width", "0.0625", "--scaling", "64", "--batch-size", "64", "--json"]) == 0
    layouts = json.loads(capsys.readouterr().out)
    assert [one["ranks"] for one in layouts] == [1, 2, 4, 8, 16, 32, 64]
    assert all(one["ranks"] == one["stages"] * one["shards"] for one in layouts)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--stages", "9"], "9 stages were asked for, and the network is cut into 3 subnetworks"),
        (["--ranks", "4"], "--ranks is for --stages"),
        (["--stages", "2", "--ranks", "3"], "--ranks 3 cannot be 2 stages"),
        (["--stages", "2", "--ranks", "6"], "--batch-size is 50"),
        (["--stages", "2", "--compare"], "ask two questions"),
        (["--bandwidth", "1e9"], "--bandwidth is for --scaling"),
    ],
)
def test_bad_plans_of_ranks(options, sentence, capsys):
    assert plan(["digits", "--width", "0.0625", *options]) == 2
    assert sentence in capsys.readouterr().err
