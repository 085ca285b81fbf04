//! The core's view of the driver, compared with cudarc's bindings to the driver of CUDA 12.0.

use binding::memory::driver::{DISABLE_TIMING, signatures};
use binding::memory::kind;
use cudarc::driver::sys;

/// The sizes of the arguments of a function, which gives back a `CUresult`.
trait Signature {
    fn sizes(self) -> Vec<usize>;
}

macro_rules! signatures_of {
    ($($arguments:ident),*) => {
        impl<$($arguments),*> Signature for unsafe fn($($arguments),*) -> sys::CUresult {
            fn sizes(self) -> Vec<usize> {
                vec![$(size_of::<$arguments>()),*]
            }
        }
    };
}

signatures_of!(A);
signatures_of!(A, B);
signatures_of!(A, B, C);
signatures_of!(A, B, C, D);

macro_rules! functions {
    ($($name:ident($($argument:tt),*);)*) => {
        vec![$((
            stringify!($name),
            Signature::sizes(sys::$name as unsafe fn($($argument),*) -> sys::CUresult),
        )),*]
    };
}

#[test]
fn functions_have_the_signatures_of_the_bindings() {
    let expected = functions! {
        cuInit(_);
        cuDeviceGetCount(_);
        cuCtxGetCurrent(_);
        cuCtxSetCurrent(_);
        cuMemHostAlloc(_, _, _);
        cuMemFreeHost(_);
        cuMemcpyDtoHAsync_v2(_, _, _, _);
        cuMemcpyHtoDAsync_v2(_, _, _, _);
        cuEventCreate(_, _);
        cuEventRecord(_, _);
        cuEventQuery(_);
        cuEventSynchronize(_);
        cuEventDestroy_v2(_);
        cuStreamSynchronize(_);
        cuGetErrorName(_, _);
        cuGetErrorString(_, _);
        cuDeviceGet(_, _);
        cuDevicePrimaryCtxRetain(_, _);
        cuStreamGetCtx(_, _);
        cuPointerGetAttribute(_, _, _);
        cuDeviceGetUuid_v2(_, _);
        cuCtxGetDevice(_);
    };
    assert_eq!(signatures(), expected);
    assert_eq!(size_of::<sys::CUresult>(), size_of::<i32>());
}

#[test]
fn constants_are_those_of_the_bindings() {
    assert_eq!(
        DISABLE_TIMING,
        sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32
    );
    use sys::CUpointer_attribute_enum as Attribute;
    let attributes = [
        (kind::CONTEXT, Attribute::CU_POINTER_ATTRIBUTE_CONTEXT),
        (
            kind::MEMORY_TYPE,
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        ),
        (
            kind::IS_LEGACY_IPC_CAPABLE,
            Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        ),
        (
            kind::MEMPOOL_HANDLE,
            Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
        ),
    ];
    for (ours, theirs) in attributes {
        assert_eq!(ours, theirs as i32);
    }
    let device = sys::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE;
    assert_eq!(kind::TYPE_DEVICE, device as u32);
}
