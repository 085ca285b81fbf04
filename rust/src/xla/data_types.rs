//! XLA's data types: their names and sizes.

use super::raw::XLA_FFI_DataType;

/// The name that JAX has for each data type, and the bytes of an element, in the order of
/// `XLA_FFI_DataType` in XLA's `c_api.h`. Types of which XLA packs several elements into a byte are no
/// calls' (`CARRIERS` in `dtypes.py`).
const TYPES: [(&str, usize); 34] = [
    ("nothing", 0),
    ("bool", 1),
    ("int8", 1),
    ("int16", 2),
    ("int32", 4),
    ("int64", 8),
    ("uint8", 1),
    ("uint16", 2),
    ("uint32", 4),
    ("uint64", 8),
    ("float16", 2),
    ("float32", 4),
    ("float64", 8),
    ("?", 0),
    ("?", 0),
    ("complex64", 8),
    ("bfloat16", 2),
    ("token", 0),
    ("complex128", 16),
    ("float8_e5m2", 1),
    ("float8_e4m3fn", 1),
    ("int4", 0),
    ("uint4", 0),
    ("float8_e4m3b11fnuz", 1),
    ("float8_e5m2fnuz", 1),
    ("float8_e4m3fnuz", 1),
    ("int2", 0),
    ("uint2", 0),
    ("float8_e4m3", 1),
    ("float8_e3m4", 1),
    ("int1", 0),
    ("uint1", 0),
    ("float4_e2m1fn", 0),
    ("float8_e8m0fnu", 1),
];

fn of(dtype: XLA_FFI_DataType) -> (&'static str, usize) {
    let index = usize::try_from(dtype).ok();
    let entry = index.and_then(|index| TYPES.get(index));
    entry.copied().unwrap_or(("?", 0))
}

/// The name that JAX has for a data type.
pub fn data_type_name(dtype: XLA_FFI_DataType) -> &'static str {
    of(dtype).0
}

/// The bytes of an element, 0 for a type that calls don't have.
pub fn data_type_size(dtype: XLA_FFI_DataType) -> usize {
    of(dtype).1
}

#[cfg(test)]
mod tests {
    use super::super::raw::*;
    use super::*;

    #[test]
    fn entries_are_where_xla_has_them() {
        for (dtype, name, size) in [
            (XLA_FFI_DataType_S8, "int8", 1),
            (XLA_FFI_DataType_U64, "uint64", 8),
            (XLA_FFI_DataType_F16, "float16", 2),
            (XLA_FFI_DataType_F32, "float32", 4),
            (XLA_FFI_DataType_C64, "complex64", 8),
            (XLA_FFI_DataType_BF16, "bfloat16", 2),
            (XLA_FFI_DataType_TOKEN, "token", 0),
            (XLA_FFI_DataType_C128, "complex128", 16),
            (20, "float8_e4m3fn", 1),
            (26, "int2", 0),
            (28, "float8_e4m3", 1),
            (33, "float8_e8m0fnu", 1),
            (-1, "?", 0),
            (99, "?", 0),
        ] {
            assert_eq!((data_type_name(dtype), data_type_size(dtype)), (name, size));
        }
    }
}
