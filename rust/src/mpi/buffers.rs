//! Send and receive buffers (MPI-4.1 §3.2.2), with the lifetime of their memory.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::abi::Abi;
use super::registry::SizedDatatype;

/// A send buffer: `count` elements of a data type that MPI reads, in memory that is not written for `'b`.
#[derive(Clone, Copy)]
pub struct SendBuffer<'b> {
    source: Source,
    count: i64,
    datatype: SizedDatatype,
    memory: PhantomData<&'b [u8]>,
}

#[derive(Clone, Copy)]
enum Source {
    Memory(*const c_void),
    /// `MPI_IN_PLACE`: the operand is in the receive buffer (MPI-4.1 §6.2).
    InPlace,
}

/// A receive buffer, which MPI writes, in memory with no other user for `'b`.
///
/// ```
/// # use _core::mpi::{SizedDatatype, RecvBuffer};
/// fn receive(mut label: [u8; 4], byte: SizedDatatype) -> [u8; 4] {
///     let room = RecvBuffer::of(&mut label, byte);
///     drop(room);
///     label
/// }
/// ```
///
/// The memory is neither used nor moved meanwhile, and no shared reference leads to it:
///
/// ```compile_fail
/// # use _core::mpi::{SizedDatatype, RecvBuffer};
/// fn receive(mut label: [u8; 4], byte: SizedDatatype) -> [u8; 4] {
///     let room = RecvBuffer::of(&mut label, byte);
///     let moved = label;
///     drop(room);
///     moved
/// }
/// ```
///
/// ```compile_fail
/// # use _core::mpi::{SizedDatatype, RecvBuffer};
/// fn receive(label: &[u8; 4], byte: SizedDatatype) {
///     let room = RecvBuffer::of(label, byte);
///     drop(room);
/// }
/// ```
pub struct RecvBuffer<'b> {
    address: *mut c_void,
    count: i64,
    datatype: SizedDatatype,
    memory: PhantomData<&'b mut [u8]>,
}

impl<'b> SendBuffer<'b> {
    /// A send buffer of `count` elements at an address.
    ///
    /// # Safety
    /// The elements are there, and are not written for `'b`.
    pub const unsafe fn new(address: *const c_void, count: i64, datatype: SizedDatatype) -> Self {
        Self {
            source: Source::Memory(address),
            count,
            datatype,
            memory: PhantomData,
        }
    }

    /// A send buffer of the core's own values. Their size is a multiple of the element size.
    pub fn of<T: IntoBytes + Immutable + ?Sized>(values: &'b T, datatype: SizedDatatype) -> Self {
        let bytes = values.as_bytes();
        let count = count_in(bytes.len(), datatype);
        // SAFETY: the bytes hold `count` elements, and are borrowed for `'b`.
        unsafe { Self::new(bytes.as_ptr().cast(), count, datatype) }
    }

    /// `MPI_IN_PLACE`, for `count` elements of the receive buffer.
    pub const fn in_place(count: i64, datatype: SizedDatatype) -> Self {
        Self {
            source: Source::InPlace,
            count,
            datatype,
            memory: PhantomData,
        }
    }

    /// The number of elements.
    pub const fn count(&self) -> i64 {
        self.count
    }

    /// The number of bytes.
    pub const fn bytes(&self) -> usize {
        self.datatype.bytes(self.count)
    }

    /// The type of the elements.
    pub const fn datatype(&self) -> SizedDatatype {
        self.datatype
    }

    /// Whether the send buffer and a receive buffer begin at the same address.
    #[inline(always)]
    pub fn begins_where(&self, recv: &RecvBuffer) -> bool {
        matches!(self.source, Source::Memory(address) if ptr::eq(address, recv.address))
    }

    /// The part of the buffer with `count` elements from element `first` on. In place, the part of the
    /// receive buffer holds the elements.
    #[inline(always)]
    pub fn part(&self, first: i64, count: i64) -> Self {
        check_part(self.count, first, count);
        let source = match self.source {
            Source::Memory(address) => {
                Source::Memory(address.wrapping_byte_add(self.datatype.bytes(first)))
            }
            Source::InPlace => Source::InPlace,
        };
        Self {
            source,
            count,
            ..*self
        }
    }

    /// The address that MPI takes.
    #[inline(always)]
    pub fn address<A: Abi>(&self) -> *const c_void {
        match self.source {
            Source::Memory(address) => address,
            Source::InPlace => A::constants().in_place as *const c_void,
        }
    }
}

impl<'b> RecvBuffer<'b> {
    /// A receive buffer with room for `count` elements at an address.
    ///
    /// # Safety
    /// The room is there, and has no other reader or writer for `'b`.
    pub const unsafe fn new(address: *mut c_void, count: i64, datatype: SizedDatatype) -> Self {
        Self {
            address,
            count,
            datatype,
            memory: PhantomData,
        }
    }

    /// A receive buffer of the core's own values. Their size is a multiple of the element size.
    pub fn of<T: IntoBytes + FromBytes + ?Sized>(
        values: &'b mut T,
        datatype: SizedDatatype,
    ) -> Self {
        let bytes = values.as_mut_bytes();
        let count = count_in(bytes.len(), datatype);
        // SAFETY: the bytes hold `count` elements, are borrowed for `'b`, and may have any content.
        unsafe { Self::new(bytes.as_mut_ptr().cast(), count, datatype) }
    }

    /// The number of elements.
    pub const fn count(&self) -> i64 {
        self.count
    }

    /// The number of bytes.
    pub const fn bytes(&self) -> usize {
        self.datatype.bytes(self.count)
    }

    /// The type of the elements.
    pub const fn datatype(&self) -> SizedDatatype {
        self.datatype
    }

    /// Lends the buffer for a shorter lifetime.
    #[inline(always)]
    pub fn reborrow(&mut self) -> RecvBuffer<'_> {
        RecvBuffer { ..*self }
    }

    /// The part of the buffer with `count` elements from element `first` on.
    #[inline(always)]
    pub fn part(self, first: i64, count: i64) -> Self {
        check_part(self.count, first, count);
        Self {
            address: self.address.wrapping_byte_add(self.datatype.bytes(first)),
            count,
            ..self
        }
    }

    /// Splits off the first `count` elements.
    #[inline(always)]
    pub fn take_front(&mut self, count: i64) -> Self {
        check_part(self.count, 0, count);
        let front = Self { count, ..*self };
        self.address = self.address.wrapping_byte_add(self.datatype.bytes(count));
        self.count -= count;
        front
    }

    /// A send buffer of the same elements.
    pub fn as_send(&self) -> SendBuffer<'_> {
        // SAFETY: the elements are not written while this buffer is borrowed.
        unsafe { SendBuffer::new(self.address, self.count, self.datatype) }
    }

    /// The address that MPI takes.
    #[inline(always)]
    pub fn address(&self) -> *mut c_void {
        self.address
    }
}

/// The number of elements in `bytes` bytes.
fn count_in(bytes: usize, datatype: SizedDatatype) -> i64 {
    assert!(
        bytes.is_multiple_of(datatype.size),
        "{bytes} bytes of elements with {} each",
        datatype.size
    );
    (bytes / datatype.size) as i64
}

#[inline(always)]
fn check_part(all: i64, first: i64, count: i64) {
    if first < 0 || count < 0 || first > all || count > all - first {
        no_part(all, first, count);
    }
}

#[cold]
fn no_part(all: i64, first: i64, count: i64) -> ! {
    panic!("{count} elements from {first} on are no part of {all}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mpi::abi::IntHandles;

    // SAFETY: MPI never gets this handle.
    const INT: SizedDatatype = unsafe { SizedDatatype::new(0, 4) };

    #[test]
    fn parts_begin_at_their_elements() {
        let mut values = [1i32, 2, 3, 4, 5];
        let start = values.as_ptr() as usize;
        let at = |send: SendBuffer| (send.address::<IntHandles>() as usize - start, send.count());
        let send = SendBuffer::of(&values, INT);
        assert_eq!(at(send), (0, 5));
        assert_eq!(at(send.part(2, 3)), (8, 3));
        assert_eq!(at(send.part(2, 3).part(1, 1)), (12, 1));
        let mut recv = RecvBuffer::of(&mut values, INT);
        assert_eq!(at(recv.reborrow().part(4, 1).as_send()), (16, 1));
        assert_eq!(at(recv.take_front(2).as_send()), (0, 2));
        assert_eq!(at(recv.as_send()), (8, 3));
    }

    #[test]
    fn in_place_is_everywhere() {
        let send = SendBuffer::in_place(3, INT);
        let in_place = IntHandles::constants().in_place;
        assert_eq!(send.count(), 3);
        assert_eq!(send.part(1, 2).address::<IntHandles>() as usize, in_place);
    }

    #[test]
    #[should_panic(expected = "3 elements from 3 on are no part of 5")]
    fn no_part_goes_beyond_the_end() {
        SendBuffer::of(&[0i32; 5], INT).part(3, 3);
    }

    #[test]
    #[should_panic(expected = "-1 elements from 1 on are no part of 5")]
    fn nothing_is_taken_off_the_front_twice() {
        let mut values = [0i32; 5];
        RecvBuffer::of(&mut values, INT).part(1, -1);
    }

    #[test]
    #[should_panic(expected = "6 bytes of elements with 4 each")]
    fn bytes_are_whole_elements() {
        SendBuffer::of(&[0u8; 6], INT);
    }
}
