//! The pieces of an array, each of which one call of MPI moves.

use std::ops::Range;

/// The piece that begins at element `start` of an array of `count`, where pieces have `length`.
pub fn piece_at(start: i64, count: i64, length: i64) -> Range<i64> {
    start..start.saturating_add(length).min(count)
}

/// The pieces of an array of `count` elements, where pieces have `length`. The last one may be shorter, or
/// empty if it is the only one.
pub fn pieces(count: i64, length: i64) -> impl Iterator<Item = Range<i64>> {
    let first = Some(piece_at(0, count, length));
    std::iter::successors(first, move |piece| {
        (piece.end < count).then(|| piece_at(piece.end, count, length))
    })
}

/// The pieces of a message, of which the receiver does not know how many there are: the last one is
/// always shorter than `length`.
pub fn pieces_to_the_end(count: i64, length: i64) -> impl Iterator<Item = Range<i64>> {
    let first = Some(piece_at(0, count, length));
    std::iter::successors(first, move |piece| {
        let is_last = piece.end - piece.start < length;
        (!is_last).then(|| piece_at(piece.end, count, length))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(pieces: impl Iterator<Item = Range<i64>>) -> Vec<(i64, i64)> {
        pieces.map(|piece| (piece.start, piece.end)).collect()
    }

    #[test]
    fn pieces_have_one_length_but_the_last() {
        let of = |count, length| ends(pieces(count, length));
        assert_eq!(of(10, 4), [(0, 4), (4, 8), (8, 10)]);
        assert_eq!(of(8, 4), [(0, 4), (4, 8)]);
        assert_eq!(of(3, 4), [(0, 3)]);
        assert_eq!(of(0, 4), [(0, 0)]);
        assert_eq!(of(5, i64::MAX), [(0, 5)]);
    }

    #[test]
    fn the_last_piece_is_short_where_it_tells_the_end() {
        let of = |count, length| ends(pieces_to_the_end(count, length));
        assert_eq!(of(10, 4), [(0, 4), (4, 8), (8, 10)]);
        assert_eq!(of(8, 4), [(0, 4), (4, 8), (8, 8)]);
        assert_eq!(of(3, 4), [(0, 3)]);
        assert_eq!(of(0, 4), [(0, 0)]);
    }
}
