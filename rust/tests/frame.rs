//! The view of XLA's call frame: what is decoded, and that what does not fit is an error.

use std::ptr;

use _core::error::{Error, Result};
use _core::xla::Frame;
use _core::xla::raw::*;

mod common;
use common::*;

/// Two operands, one result and two attributes, with tokens among them.
fn call() -> CallFrame {
    CallFrame::default()
        .operand(token())
        .operand(buffer(F32, 0x1000, &[2, 3]))
        .operand(buffer(S64, 0x2000, &[]))
        .result(buffer(F32, 0x3000, &[4]))
        .result(token())
        .ints(&[("comm", 7), ("tag", -1)])
}

fn unchanged(_frame: &mut XLA_FFI_CallFrame) {}

fn operands<const N: usize>(frame: &Frame) -> Result<()> {
    frame.operands.exactly::<N>().map(|_| ())
}

fn results<const N: usize>(frame: &Frame) -> Result<()> {
    frame.results.exactly::<N>().map(|_| ())
}

fn nothing(_frame: &Frame) -> Result<()> {
    Ok(())
}

/// Reached only where an earlier check is missing.
fn unreached(_frame: &Frame) -> Result<()> {
    Err(Error::internal("the body was called"))
}

#[test]
fn a_frame_is_decoded() {
    let mut seen = None;
    let outcome = call().enter(unchanged, |frame| {
        let [first, second] = frame.operands.exactly()?;
        let [result] = frame.results.exactly()?;
        let buffers = [first, second, result.into()].map(|buffer| {
            (
                buffer.address as usize,
                buffer.dtype,
                buffer.dims.to_vec(),
                buffer.count,
            )
        });
        seen = Some((
            buffers,
            frame.attributes.integer("comm")?,
            frame.attributes.int("tag")?,
        ));
        Ok(())
    });
    assert_eq!(outcome, Ok(()));
    let (buffers, comm, tag) = seen.unwrap();
    assert_eq!(
        buffers,
        [
            (0x1000, F32, vec![2, 3], 6),
            (0x2000, S64, vec![], 1),
            (0x3000, F32, vec![4], 4),
        ]
    );
    assert_eq!((comm, tag), (7, -1));
}

#[test]
fn a_call_may_have_no_buffers() {
    let outcome = CallFrame::default().enter(
        |frame| {
            // XLA has no arrays to point to then.
            frame.args.types = ptr::null_mut();
            frame.args.args = ptr::null_mut();
        },
        |frame| {
            let [] = frame.operands.exactly()?;
            let [] = frame.results.exactly()?;
            Ok(())
        },
    );
    assert_eq!(outcome, Ok(()));
}

#[test]
fn an_array_may_be_empty() {
    let call = CallFrame::default().operand(buffer(F32, 0, &[3, 0]));
    let outcome = call.enter(unchanged, |frame| {
        let [operand] = frame.operands.exactly()?;
        assert_eq!((operand.dims, operand.count), (&[3, 0][..], 0));
        assert!(operand.address.is_null());
        Ok(())
    });
    assert_eq!(outcome, Ok(()));
}

#[test]
fn the_number_of_buffers_must_be_right() {
    for (body, text) in [
        (
            operands::<0> as fn(&Frame) -> _,
            "expected 0 operands, got 2",
        ),
        (operands::<1>, "expected 1 operand, got 2"),
        (operands::<3>, "expected 3 operands, got 2"),
        (results::<0>, "expected 0 results, got 1"),
        (results::<2>, "expected 2 results, got 1"),
    ] {
        assert_eq!(call().enter(unchanged, body), invalid(text));
    }
}

#[test]
fn only_buffers_are_taken() {
    let mut other_operand = call();
    other_operand.operands[2].kind = 2;
    assert_eq!(
        other_operand.enter(unchanged, operands::<2>),
        invalid("operand 1 has kind 2, expected a buffer")
    );
    let mut other_result = call();
    other_result.results[0].kind = 9;
    assert_eq!(
        other_result.enter(unchanged, results::<1>),
        invalid("result 0 has kind 9, expected a buffer")
    );
}

#[test]
fn a_null_buffer_is_an_error() {
    let mut call = call();
    call.operands[1].is_null = true;
    assert_eq!(
        call.enter(unchanged, operands::<2>),
        invalid("operand 0 is null, expected a buffer")
    );
}

#[test]
fn a_length_must_have_an_array() {
    assert_eq!(
        call().enter(|frame| frame.args.types = ptr::null_mut(), operands::<2>),
        invalid("operand types: a length of 3 at address 0x0")
    );
    assert_eq!(
        call().enter(|frame| frame.rets.rets = ptr::null_mut(), results::<1>),
        invalid("results: a length of 2 at address 0x0")
    );
    let no_names = call().enter(
        |frame| frame.attrs.names = ptr::null_mut(),
        |frame| frame.attributes.integer("comm").map(|_| ()),
    );
    assert_eq!(
        no_names,
        invalid("attribute names: a length of 2 at address 0x0")
    );
}

#[test]
fn a_rank_must_not_be_negative() {
    let mut call = call();
    call.operands[1].rank = -1;
    let Err((code, text)) = call.enter(unchanged, operands::<2>) else {
        panic!("the frame was taken")
    };
    assert_eq!(code, XLA_FFI_Error_Code_INVALID_ARGUMENT);
    assert!(
        text.starts_with("dimensions: a length of -1 at address 0x"),
        "{text}"
    );
}

#[test]
fn a_size_must_not_be_negative() {
    // The product of the last one is not.
    for dims in [&[-1][..], &[2, -3], &[0, i64::MIN], &[-2, -3]] {
        let text = format!("has shape {dims:?}, expected no negative size");
        let mut frame = call();
        frame.operands[1] = buffer(F32, 0x1000, dims);
        assert_eq!(
            frame.enter(unchanged, operands::<2>),
            invalid(&format!("operand 0 {text}"))
        );
        let mut frame = call();
        frame.results[0] = buffer(F32, 0x3000, dims);
        assert_eq!(
            frame.enter(unchanged, results::<1>),
            invalid(&format!("result 0 {text}"))
        );
    }
}

#[test]
fn structs_must_not_be_too_short() {
    let mut buffer = call();
    buffer.operands[2].struct_size = 40;
    assert_eq!(
        buffer.enter(unchanged, operands::<2>),
        invalid("XLA_FFI_Buffer has 40 bytes, expected at least 48")
    );
    for (shorten, text) in [
        (
            (|frame| frame.struct_size = 160) as fn(&mut XLA_FFI_CallFrame),
            "XLA_FFI_CallFrame has 160 bytes, expected at least 168",
        ),
        (
            |frame| frame.args.struct_size = 39,
            "XLA_FFI_Args has 39 bytes, expected at least 40",
        ),
        (
            |frame| frame.rets.struct_size = 0,
            "XLA_FFI_Rets has 0 bytes, expected at least 40",
        ),
        (
            |frame| frame.attrs.struct_size = 40,
            "XLA_FFI_Attrs has 40 bytes, expected at least 48",
        ),
    ] {
        assert_eq!(call().enter(shorten, unreached), invalid(text));
    }
}

#[test]
fn structs_may_be_longer() {
    let mut call = call();
    call.operands[1].struct_size += 8;
    let outcome = call.enter(
        |frame| {
            frame.struct_size += 8;
            frame.args.struct_size += 16;
            frame.attrs.struct_size += 8;
        },
        operands::<2>,
    );
    assert_eq!(outcome, Ok(()));
}

#[test]
fn an_attribute_must_be_there() {
    let outcome = call().enter(unchanged, |frame| {
        frame.attributes.integer("root").map(|_| ())
    });
    assert_eq!(outcome, invalid("attribute `root` is missing"));
    // A name that begins like one that is there.
    let outcome = call().enter(unchanged, |frame| {
        frame.attributes.integer("com").map(|_| ())
    });
    assert_eq!(outcome, invalid("attribute `com` is missing"));
}

#[test]
fn an_attribute_must_be_a_64_bit_integer() {
    let wrong = |kind, dtype| {
        let attribute = Attribute {
            kind,
            dtype,
            ..attribute("root", 1)
        };
        call().attribute(attribute).enter(unchanged, |frame| {
            frame.attributes.integer("root").map(|_| ())
        })
    };
    assert_eq!(
        wrong(4, S64),
        invalid("attribute `root` has kind 4, expected a scalar")
    );
    assert_eq!(
        wrong(XLA_FFI_AttrType_SCALAR, F32),
        invalid("attribute `root` has type 11, expected a 64-bit integer")
    );
    assert_eq!(
        wrong(XLA_FFI_AttrType_SCALAR, S32),
        invalid("attribute `root` has type 4, expected a 64-bit integer")
    );
}

/// Reads the array `counts` of a call with this attribute.
fn read_counts(attribute: Attribute) -> std::result::Result<Vec<i64>, String> {
    let mut counts = None;
    let outcome = call().attribute(attribute).enter(unchanged, |frame| {
        counts = Some(frame.attributes.integers("counts")?.into_owned());
        Ok(())
    });
    match outcome {
        Ok(()) => Ok(counts.unwrap()),
        Err((code, text)) => {
            assert_eq!(code, XLA_FFI_Error_Code_INVALID_ARGUMENT);
            Err(text)
        }
    }
}

#[test]
fn an_array_of_integers_is_decoded() {
    let counts = array_attribute("counts", &[3, -1, i64::MAX]);
    assert_eq!(read_counts(counts), Ok(vec![3, -1, i64::MAX]));
    let empty = Attribute {
        is_null: true,
        ..array_attribute("counts", &[])
    };
    assert_eq!(read_counts(empty), Ok(vec![]));
}

/// Fails by a panic of the debug build's where the array is read as if it were aligned.
#[test]
fn an_array_of_integers_needs_no_alignment() {
    let bytes: Vec<u8> = [0u8].into_iter().chain(7i64.to_ne_bytes()).collect();
    let mut array = XLA_FFI_Array {
        dtype: S64,
        size: 1,
        data: bytes[1..].as_ptr().cast_mut().cast(),
    };
    let mut counts = None;
    let outcome = CallFrame::default().list("counts", &[0]).enter(
        |frame| {
            // SAFETY: the frame has room for its one attribute.
            unsafe { *frame.attrs.attrs = ptr::from_mut(&mut array).cast() };
        },
        |frame| {
            counts = Some(frame.attributes.integers("counts")?.into_owned());
            Ok(())
        },
    );
    assert_eq!((outcome, counts), (Ok(()), Some(vec![7])));
}

#[test]
fn an_array_must_have_64_bit_integers() {
    let array = || array_attribute("counts", &[1, 2]);
    for (attribute, text) in [
        (
            attribute("counts", 1),
            "attribute `counts` has kind 3, expected an array",
        ),
        (
            Attribute {
                dtype: S32,
                ..array()
            },
            "attribute `counts` has elements of type 4, expected 64-bit integers",
        ),
        (
            Attribute {
                is_null: true,
                ..array()
            },
            "attribute `counts` has 2 elements at the null address",
        ),
        (
            array_attribute("other", &[1, 2]),
            "attribute `counts` is missing",
        ),
    ] {
        assert_eq!(read_counts(attribute), Err(text.into()));
    }
}

#[test]
fn an_int_must_fit() {
    let read = |value| {
        let mut seen = None;
        let outcome = CallFrame::default()
            .ints(&[("tag", value)])
            .enter(unchanged, |frame| {
                seen = Some(frame.attributes.int("tag")?);
                Ok(())
            });
        outcome.map(|()| seen.unwrap())
    };
    assert_eq!(read(i32::MAX.into()), Ok(i32::MAX));
    assert_eq!(read(i32::MIN.into()), Ok(i32::MIN));
    assert_eq!(
        read(1 << 31).map(|_| ()),
        invalid("attribute `tag` is 2147483648, not an int of MPI's")
    );
}

#[test]
fn only_the_execution_stage_is_served() {
    for (stage, text) in [
        (0, "called in stage 0, expected the execution stage"),
        (2, "called in stage 2, expected the execution stage"),
    ] {
        assert_eq!(
            call().enter(|frame| frame.stage = stage, unreached),
            invalid(text)
        );
    }
}

#[test]
fn the_error_of_a_body_reaches_xla() {
    for (error, outcome) in [
        (Error::invalid("too long"), invalid("too long")),
        (Error::precondition("too late"), precondition("too late")),
        (Error::internal("too bad"), internal("too bad")),
        // C strings end at a NUL: the rest of the text would be lost.
        (Error::internal("before\0after"), internal("before after")),
    ] {
        assert_eq!(call().enter(unchanged, |_| Err(error)), outcome);
    }
}

/// Fails by ending the process, were the panic to cross into C.
#[test]
fn a_panic_becomes_an_error() {
    let panicked = |text: &str| {
        internal(&format!(
            "mpi4jax panicked: {text}. This is a defect of mpi4jax: please report it"
        ))
    };
    assert_eq!(
        call().enter(unchanged, |_| panic!("no way")),
        panicked("no way")
    );
    let way = 3;
    assert_eq!(
        call().enter(unchanged, |_| panic!("no way {way}")),
        panicked("no way 3")
    );
    assert_eq!(
        call().enter(unchanged, |_| std::panic::panic_any(way)),
        panicked("no message")
    );
}

/// The struct that XLA lends at registration, with values that must be overwritten.
fn metadata() -> XLA_FFI_Metadata {
    XLA_FFI_Metadata {
        struct_size: 36,
        api_version: XLA_FFI_Api_Version {
            struct_size: size_of::<XLA_FFI_Api_Version>(),
            extension_start: ptr::null_mut(),
            major_version: -1,
            minor_version: -1,
        },
        traits: u32::MAX,
    }
}

/// Calls as XLA does at registration: with an extension of type `type_`, and no call to make.
fn ask(
    type_: i32,
    edit: impl FnOnce(&mut XLA_FFI_CallFrame, &mut XLA_FFI_Metadata_Extension),
    metadata: &mut XLA_FFI_Metadata,
    body: impl FnOnce(&Frame) -> Result<()>,
) -> Outcome {
    let mut extension = XLA_FFI_Metadata_Extension {
        extension_base: XLA_FFI_Extension_Base {
            struct_size: size_of::<XLA_FFI_Metadata_Extension>(),
            type_,
            next: ptr::null_mut(),
        },
        metadata,
    };
    CallFrame::default().enter(
        |frame| {
            edit(frame, &mut extension);
            frame.extension_start = ptr::from_mut(&mut extension).cast();
        },
        body,
    )
}

fn as_is(_frame: &mut XLA_FFI_CallFrame, _extension: &mut XLA_FFI_Metadata_Extension) {}

#[test]
fn metadata_has_the_version_of_the_framework_and_no_traits() {
    let mut metadata = metadata();
    let outcome = ask(XLA_FFI_Extension_Metadata, as_is, &mut metadata, unreached);
    assert_eq!(outcome, Ok(()));
    let version = &metadata.api_version;
    assert_eq!((version.major_version, version.minor_version), (3, 14));
    assert_eq!(metadata.traits, 0);
}

#[test]
fn metadata_needs_no_function_table() {
    let mut metadata = metadata();
    let outcome = ask(
        XLA_FFI_Extension_Metadata,
        |frame, _| frame.api = ptr::null(),
        &mut metadata,
        unreached,
    );
    assert_eq!(outcome, Ok(()));
    let version = &metadata.api_version;
    assert_eq!((version.major_version, version.minor_version), (0, 1));
}

#[test]
fn metadata_needs_room() {
    let mut short = metadata();
    short.struct_size = 32;
    assert_eq!(
        ask(XLA_FFI_Extension_Metadata, as_is, &mut short, unreached),
        invalid("XLA_FFI_Metadata has 32 bytes, expected at least 36")
    );
    assert_eq!(short.traits, u32::MAX, "written behind the end");
    assert_eq!(
        ask(
            XLA_FFI_Extension_Metadata,
            |_, extension| extension.metadata = ptr::null_mut(),
            &mut metadata(),
            unreached,
        ),
        invalid("metadata asked for, with no room for it")
    );
    assert_eq!(
        ask(
            XLA_FFI_Extension_Metadata,
            |_, extension| extension.extension_base.struct_size = 24,
            &mut metadata(),
            unreached,
        ),
        invalid("XLA_FFI_Metadata_Extension has 24 bytes, expected at least 32")
    );
}

#[test]
fn an_unknown_extension_is_ignored() {
    let mut metadata = metadata();
    let mut called = false;
    let outcome = ask(2, as_is, &mut metadata, |frame| {
        called = true;
        nothing(frame)
    });
    assert_eq!(outcome, Ok(()));
    assert!(called);
    assert_eq!(metadata.traits, u32::MAX);
}

/// The numbers of operands and results of a call on a device.
fn sizes_on_device(call: CallFrame) -> (Outcome, Option<(usize, usize)>) {
    let mut sizes = None;
    let outcome = call.enter(unchanged, |frame| {
        let frame = frame.without_order_byte()?;
        sizes = Some((frame.operands.all()?.len(), frame.results.all()?.len()));
        Ok(())
    });
    (outcome, sizes)
}

#[test]
fn a_call_on_a_device_is_ordered_by_a_byte() {
    let byte = || buffer(U8, 0x4000, &[1]);
    let array = || buffer(U8, 0x5000, &[1]);
    let call = || CallFrame::default().operand(array());
    assert_eq!(
        sizes_on_device(call().operand(byte()).result(byte())),
        (Ok(()), Some((1, 0)))
    );
    // As programs have it that an earlier version has exported.
    assert_eq!(
        sizes_on_device(call().operand(token()).result(array()).result(token())),
        (Ok(()), Some((1, 1)))
    );
    let refused = |role| {
        invalid(&format!(
            "the last {role} of a call on a device is not the byte that orders it"
        ))
    };
    let larger = || buffer(U8, 0x4000, &[2]);
    let float = || buffer(F32, 0x4000, &[1]);
    for (call, role) in [
        (CallFrame::default().result(byte()), "operand"),
        (call().operand(larger()).result(byte()), "operand"),
        (call().operand(float()).result(byte()), "operand"),
        (call(), "result"),
        (call().result(larger()), "result"),
    ] {
        assert_eq!(sizes_on_device(call), (refused(role), None));
    }
}

#[test]
fn the_byte_is_not_the_first_operand() {
    let byte = || buffer(U8, 0x4000, &[1]);
    let call = CallFrame::default().operand(byte()).result(byte());
    let mut seen = None;
    let outcome = call.enter(unchanged, |frame| {
        let frame = frame.without_order_byte()?;
        seen = Some((frame.operands.first_type(), frame.results.first_type()));
        Ok(())
    });
    assert_eq!((outcome, seen), (Ok(()), Some((None, None))));
}
