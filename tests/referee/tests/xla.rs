//! The core's view of XLA's FFI, compared with `c_api.h`.

use std::mem::offset_of;

use binding::xla::raw;
use referee::xla as header;

fn size_of_field<S, F>(_field: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// Compares place and size of every field, or all but one: one of ours that is not named here does not
/// compile.
macro_rules! compare_fields {
    ($($name:ident { $($field:ident),* $(,)? } $((not $other:ident))?)*) => {
        $(
            let _complete = |raw::$name { $($field: _,)* $($other: _)? }: raw::$name| ();
            $(
                assert_eq!(
                    (offset_of!(raw::$name, $field), size_of_field(|ours: &raw::$name| &ours.$field)),
                    (
                        offset_of!(header::$name, $field),
                        size_of_field(|theirs: &header::$name| &theirs.$field),
                    ),
                    "offset and size of {}.{}", stringify!($name), stringify!($field),
                );
            )*
        )*
    };
}

#[test]
fn fields_are_where_the_header_has_them() {
    compare_fields! {
        XLA_FFI_Extension_Base { struct_size, type_, next }
        XLA_FFI_Api_Version { struct_size, extension_start, major_version, minor_version }
        XLA_FFI_Error_Create_Args { struct_size, extension_start, message, errc }
        XLA_FFI_Error_Destroy_Args { struct_size, extension_start, error }
        XLA_FFI_Stream_Get_Args { struct_size, extension_start, ctx, stream }
        XLA_FFI_Buffer { struct_size, extension_start, dtype, data, rank, dims }
        XLA_FFI_ByteSpan { ptr, len }
        XLA_FFI_Scalar { dtype, value }
        XLA_FFI_Array { dtype, size, data }
        XLA_FFI_Args { struct_size, extension_start, size, types, args }
        XLA_FFI_Rets { struct_size, extension_start, size, types, rets }
        XLA_FFI_Attrs { struct_size, extension_start, size, types, names, attrs }
        XLA_FFI_CallFrame { struct_size, extension_start, api, ctx, stage, args, rets, attrs }
        XLA_FFI_Metadata { struct_size, api_version, traits }
        XLA_FFI_Metadata_Extension { extension_base, metadata }
        XLA_FFI_Api {
            struct_size, extension_start, api_version, internal_api, XLA_FFI_Error_Create,
            XLA_FFI_Error_Destroy, XLA_FFI_Handler_Register, XLA_FFI_Stream_Get,
        } (not XLA_FFI_Error_GetMessage)
    }
}

#[test]
fn structs_have_the_size_of_the_header() {
    macro_rules! compare {
        ($($name:ident)*) => {
            $(assert_eq!(
                size_of::<raw::$name>(),
                size_of::<header::$name>(),
                stringify!($name),
            );)*
        };
    }
    compare! {
        XLA_FFI_Extension_Base XLA_FFI_Api_Version XLA_FFI_Error_Create_Args
        XLA_FFI_Error_Destroy_Args XLA_FFI_Stream_Get_Args XLA_FFI_Buffer XLA_FFI_ByteSpan XLA_FFI_Scalar XLA_FFI_Array XLA_FFI_Args XLA_FFI_Rets XLA_FFI_Attrs
        XLA_FFI_Metadata_Extension
    }
    // These go on in XLA; ours stop at the last field that the core reads.
    assert!(size_of::<raw::XLA_FFI_CallFrame>() <= size_of::<header::XLA_FFI_CallFrame>());
    assert!(size_of::<raw::XLA_FFI_Metadata>() <= size_of::<header::XLA_FFI_Metadata>());
    assert!(size_of::<raw::XLA_FFI_Api>() <= size_of::<header::XLA_FFI_Api>());
}

/// XLA's `struct_size` stops at the last field, before the padding. The core takes no struct for
/// one that is too short.
#[test]
fn what_xla_fills_is_what_the_core_expects() {
    macro_rules! covers {
        ($($name:ident: $filled:ident,)*) => {
            $(assert!(size_of::<raw::$name>() <= header::$filled as usize, stringify!($name));)*
        };
    }
    covers! {
        XLA_FFI_CallFrame: XLA_FFI_CallFrame_STRUCT_SIZE,
        XLA_FFI_Args: XLA_FFI_Args_STRUCT_SIZE,
        XLA_FFI_Rets: XLA_FFI_Rets_STRUCT_SIZE,
        XLA_FFI_Attrs: XLA_FFI_Attrs_STRUCT_SIZE,
        XLA_FFI_Buffer: XLA_FFI_Buffer_STRUCT_SIZE,
        XLA_FFI_Metadata_Extension: XLA_FFI_Metadata_Extension_STRUCT_SIZE,
    }
    let end_of_traits = offset_of!(raw::XLA_FFI_Metadata, traits) + size_of::<u32>();
    assert!(end_of_traits <= header::XLA_FFI_Metadata_STRUCT_SIZE as usize);
    assert!(size_of::<raw::XLA_FFI_Api>() <= header::XLA_FFI_Api_STRUCT_SIZE as usize);
}

/// XLA refuses arguments that say they are shorter than what it reads.
#[test]
fn what_the_core_fills_is_what_xla_expects() {
    macro_rules! covers {
        ($($name:ident: $read:ident,)*) => {
            $(assert!(size_of::<raw::$name>() >= header::$read as usize, stringify!($name));)*
        };
    }
    covers! {
        XLA_FFI_Error_Create_Args: XLA_FFI_Error_Create_Args_STRUCT_SIZE,
        XLA_FFI_Error_Destroy_Args: XLA_FFI_Error_Destroy_Args_STRUCT_SIZE,
        XLA_FFI_Stream_Get_Args: XLA_FFI_Stream_Get_Args_STRUCT_SIZE,
    }
}

#[test]
fn constants_are_those_of_the_header() {
    macro_rules! compare {
        ($($name:ident)*) => {
            $(assert_eq!(i64::from(raw::$name), i64::from(header::$name), stringify!($name));)*
        };
    }
    compare! {
        XLA_FFI_Extension_Metadata
        XLA_FFI_Error_Code_INVALID_ARGUMENT
        XLA_FFI_Error_Code_FAILED_PRECONDITION
        XLA_FFI_Error_Code_INTERNAL
        XLA_FFI_DataType_S8
        XLA_FFI_DataType_S16
        XLA_FFI_DataType_S32
        XLA_FFI_DataType_S64
        XLA_FFI_DataType_U8
        XLA_FFI_DataType_U16
        XLA_FFI_DataType_U32
        XLA_FFI_DataType_U64
        XLA_FFI_DataType_F16
        XLA_FFI_DataType_F32
        XLA_FFI_DataType_F64
        XLA_FFI_DataType_C64
        XLA_FFI_DataType_BF16
        XLA_FFI_DataType_TOKEN
        XLA_FFI_DataType_C128
        XLA_FFI_ArgType_BUFFER
        XLA_FFI_RetType_BUFFER
        XLA_FFI_AttrType_ARRAY
        XLA_FFI_AttrType_SCALAR
        XLA_FFI_ExecutionStage_EXECUTE
    }
}

/// Fails when a struct or a constant was added to the core that is not compared here.
#[test]
fn all_of_the_core_is_compared() {
    let words = |text: &'static str| text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let compared: Vec<_> = words(include_str!("xla.rs")).collect();
    let declared = include_str!("../../../rust/src/xla/raw.rs").lines();
    for line in declared {
        let declaration = line.strip_prefix("pub struct ");
        let Some(declaration) = declaration.or_else(|| line.strip_prefix("pub const ")) else {
            continue;
        };
        let name = words(declaration).next().unwrap();
        // The one that is opaque has nothing to compare.
        assert!(
            compared.contains(&name) || name == "XLA_FFI_Error",
            "{name}"
        );
    }
}
