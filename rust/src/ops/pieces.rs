//! The pieces of an array, each of which one call of MPI moves.

use std::ops::Range;

/// The piece that begins at element `start` of an array of `count`, where pieces have `length`.
pub fn piece_at(start: i64, count: i64, length: i64) -> Range<i64> {
    start..start.saturating_add(length).min(count)
}

/// The pieces of an array of so many elements. The last one may be shorter, or empty if it is the
/// only one.
pub fn pieces(count: i64, length: i64) -> impl Iterator<Item = Range<i64>> {
    let first = Some(piece_at(0, count, length));
    std::iter::successors(first, move |piece| {
        (piece.end < count).then(|| piece_at(piece.end, count, length))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_one_length_but_the_last() {
        let of = |count, length| {
            let piece = |piece: Range<i64>| (piece.start, piece.end);
            pieces(count, length).map(piece).collect::<Vec<_>>()
        };
        assert_eq!(of(10, 4), [(0, 4), (4, 8), (8, 10)]);
        assert_eq!(of(8, 4), [(0, 4), (4, 8)]);
        assert_eq!(of(3, 4), [(0, 3)]);
        assert_eq!(of(0, 4), [(0, 0)]);
        assert_eq!(of(5, i64::MAX), [(0, 5)]);
    }
}
