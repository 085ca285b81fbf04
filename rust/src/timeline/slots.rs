//! Tracks for events of the same time, which are drawn beside each other.

use std::collections::VecDeque;
use std::ops::Range;

/// Tracks on which nothing overlaps. Things come in the order in which they begin.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// When the last one on each track ends.
    ends: Vec<i64>,
}

impl Slots {
    /// The first track that is free at `begin`. What has no end takes it for good, or until
    /// [`end`](Self::end).
    pub(super) fn take(&mut self, begin: i64, end: Option<i64>) -> usize {
        let free = self.ends.iter().position(|end| *end < begin);
        let track = free.unwrap_or(self.ends.len());
        if track == self.ends.len() {
            self.ends.push(i64::MIN);
        }
        self.ends[track] = end.unwrap_or(i64::MAX);
        track
    }

    /// Says when the last one on a track ends.
    pub(super) fn end(&mut self, track: usize, end: i64) {
        self.ends[track] = end;
    }
}

/// Tracks on which each thing is beside the others or within one of them. They come in the order of
/// their ends.
#[derive(Debug, Default)]
pub(super) struct NestingSlots {
    /// The last ones on each track that are within no other, in order.
    outermost: Vec<VecDeque<Range<i64>>>,
}

/// Number of things kept on a track, to see whether a later one is around some of them.
const MAX_INNER: usize = 256;

impl NestingSlots {
    /// The first track with room.
    pub(super) fn take(&mut self, times: &Range<i64>) -> usize {
        let has_room = |outermost: &VecDeque<Range<i64>>| {
            let outside = outermost
                .iter()
                .rev()
                .find(|inner| inner.start <= times.start);
            outside.is_none_or(|other| other.end < times.start)
                // Those before the first one are not known any more.
                && (outside.is_some() || outermost.len() < MAX_INNER)
        };
        let free = self.outermost.iter().position(has_room);
        let track = free.unwrap_or(self.outermost.len());
        if track == self.outermost.len() {
            self.outermost.push(VecDeque::new());
        }
        let outermost = &mut self.outermost[track];
        while outermost
            .back()
            .is_some_and(|inner| inner.start > times.start)
        {
            outermost.pop_back();
        }
        outermost.push_back(times.clone());
        if outermost.len() > MAX_INNER {
            outermost.pop_front();
        }
        track
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        let mut slots = Slots::default();
        let take = |(begin, end)| slots.take(begin, end);
        let times = [
            (0, Some(9)),
            (5, None),
            (9, Some(12)),
            (10, Some(11)),
            (12, None),
        ];
        assert_eq!(times.map(take), [0, 1, 2, 0, 0]);
        slots.end(1, 20);
        assert_eq!(slots.take(21, None), 1);
    }

    #[test]
    fn what_is_within_another_is_on_its_track() {
        let mut slots = NestingSlots::default();
        let mut take = |times| slots.take(&times);
        assert_eq!(
            [take(2..3), take(4..5), take(1..6), take(7..8)],
            [0, 0, 0, 0]
        );
        // They overlap.
        assert_eq!([take(5..9), take(0..10)], [1, 0]);
    }
}
