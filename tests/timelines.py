"""Timelines as lists of events, read by Perfetto's own classes."""

from collections import defaultdict

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


class Texts:
    """The texts that packets refer to by numbers."""

    def __init__(self):
        self.names, self.arguments, self.strings = {}, {}, {}

    def add(self, data):
        self.names |= {text.iid: text.name for text in data.event_names}
        self.arguments |= {text.iid: text.name for text in data.debug_annotation_names}
        strings = data.debug_annotation_string_values
        self.strings |= {text.iid: text.str.decode() for text in strings}

    def value(self, annotation):
        if annotation.array_values:
            return [self.value(value) for value in annotation.array_values]
        if annotation.HasField("string_value_iid"):
            return self.strings[annotation.string_value_iid]
        return annotation.int_value

    def args(self, event):
        annotations = event.debug_annotations
        return {self.arguments[each.name_iid]: self.value(each) for each in annotations}


def read(path):
    """The events of a timeline, as dicts with the names of Chrome's trace events.

    A slice ("X") is on the thread "tid" of the process "pid", from "ts", for "dur", in
    microseconds. A bar in flight ("b") is the same, beside the threads. An arrow begins
    ("s") and ends ("f") with a slice. "M" names a process or a thread.
    """
    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    texts, tracks, events = Texts(), {}, []
    by_track = defaultdict(list)
    for order, packet in enumerate(trace.packet):
        texts.add(packet.interned_data)
        if packet.HasField("track_descriptor"):
            events.append(_described(packet.track_descriptor, tracks))
        else:
            event = packet.track_event
            by_track[event.track_uuid].append((packet.timestamp, order, event))
    for uuid, its_events in by_track.items():
        events += _slices(tracks[uuid], sorted(its_events, key=lambda e: e[:2]), texts)
    return events


def _described(track, tracks):
    if track.HasField("process"):
        tracks[track.uuid] = {"pid": track.process.pid}
        name = track.process.process_name
    elif track.HasField("thread"):
        tracks[track.uuid] = {"pid": track.thread.pid, "tid": track.thread.tid}
        assert tracks[track.parent_uuid] == {"pid": track.thread.pid}
        name = track.thread.thread_name
    else:
        tracks[track.uuid] = tracks[track.parent_uuid] | {"cat": track.name}
        name = track.name
    return {"ph": "M", **tracks[track.uuid], "args": {"name": name}}


def _slices(track, its_events, texts):
    """The events of a track, whose slices are nested."""
    is_thread = "tid" in track
    stack, events = [], []
    for time, _, event in its_events:
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            assert event.HasField("name_iid")
            stack.append(
                {
                    "ph": "X" if is_thread else "b",
                    "name": texts.names[event.name_iid],
                    **track,
                    "ts": time / 1000,
                    "dur": 0.0,
                    "args": texts.args(event),
                }
            )
            events.append(stack[-1])
        else:
            assert event.type == TrackEvent.TYPE_SLICE_END
            ended = stack.pop()
            ended["dur"] = time / 1000 - ended["ts"]
        slice_ = stack[-1] if event.type == TrackEvent.TYPE_SLICE_BEGIN else ended
        ends = [("s", flow_id) for flow_id in event.flow_ids]
        ends += [("f", flow_id) for flow_id in event.terminating_flow_ids]
        for phase, flow_id in ends:
            events.append(
                {"ph": phase, "id": flow_id, "slice": slice_, **track, "ts": time / 1000}
            )
    return events
