//! The name service, on an MPI that only records what it is asked.

use _core::mpi::Abi;
use _core::mpi::calls::{NameHandles, NameService};

mod common;
use common::recorder::*;

/// A service whose MPI has error handlers with the number 0, which return errors if that is so.
fn service(errors_return: usize) -> NameService<Recorder> {
    bind();
    let functions = Recorder::functions().get().unwrap();
    // SAFETY: the stand-in takes any handles.
    let handles = unsafe { NameHandles::new([0x11, 0x12], 0x13, errors_return) };
    NameService::new(functions, handles)
}

/// Result of `body`, and the calls of MPI that `body` made.
fn calls_of<R>(body: impl FnOnce() -> R) -> (R, Vec<Recorded>) {
    (body(), recorded())
}

fn names(calls: &[Recorded]) -> Vec<&str> {
    calls.iter().map(|(function, _)| *function).collect()
}

const ASKED: [&str; 4] = [
    "MPI_Comm_get_errhandler",
    "MPI_Errhandler_free",
    "MPI_Comm_get_errhandler",
    "MPI_Errhandler_free",
];

#[test]
fn texts_are_published_and_looked_up() {
    let service = service(0);
    let (result, calls) = calls_of(|| service.publish("name", "text"));
    assert_eq!(result, Ok(()));
    assert_eq!(names(&calls), [&ASKED[..], &["MPI_Publish_name"]].concat());
    let words = |text: &str| text.bytes().take(2).map(i64::from).collect::<Vec<_>>();
    assert_eq!(
        calls[4].1,
        [words("name"), vec![0x13], words("text")].concat()
    );
    let (text, calls) = calls_of(|| service.look_up("name"));
    assert_eq!(text.as_deref(), Some(""));
    assert_eq!(names(&calls), [&ASKED[..], &["MPI_Lookup_name"]].concat());
}

#[test]
fn an_error_is_no_text() {
    let service = service(0);
    assert_eq!(
        failing("MPI_Lookup_name", 33, || service.look_up("name")),
        None
    );
    let why = failing("MPI_Publish_name", 33, || service.publish("name", "text"));
    assert_eq!(
        why,
        Err("this MPI and its launcher have no MPI_Publish_name".into())
    );
}

/// Fails if a program ends as its error handlers end it where a name is not there.
#[test]
fn nothing_is_asked_where_an_error_ends_the_program() {
    let service = service(5);
    let (result, calls) = calls_of(|| service.publish("name", "text"));
    assert_eq!(result, Err("an error of MPI's ends the program".into()));
    assert_eq!(names(&calls), ASKED[..2]);
    let (text, calls) = calls_of(|| service.look_up("name"));
    assert_eq!((text, names(&calls)), (None, ASKED[..2].to_vec()));
}
