//! The table of errors, the page about it, and etcd's own definitions.

use std::fmt::Write;

use pontoon_api::{CancelReason, Error, message_too_large, unknown_method, unknown_service};
use tonic::{Code, Status};

const PAGE: &str = include_str!("../../../docs/errors.md");
const ETCD: &str = include_str!("../golden/errors.txt");

/// What the server sends with another code than etcd's packages define.
const SENT_AS_UNKNOWN: [Error; 2] = [Error::NotEnoughStartedMembers, Error::TooManyRequests];

#[test]
fn the_page_has_the_table_line_by_line() {
    let mut expected = String::new();
    for error in Error::ALL {
        let code = code(error.code());
        writeln!(expected, "| `{error:?}` | {code} | `{}` |", error.text()).unwrap();
    }
    for status in [
        message_too_large("N", "M"),
        unknown_method("SERVICE", "METHOD"),
        unknown_service("SERVICE"),
    ] {
        writeln!(
            expected,
            "| {} | `{}` |",
            code(status.code()),
            status.message()
        )
        .unwrap();
    }
    for reason in CancelReason::ALL {
        writeln!(expected, "| `{reason:?}` | `{}` |", reason.text()).unwrap();
    }
    let rows = |line: &&str| {
        line.starts_with('|') && !line.starts_with("|---") && !line.ends_with("| text |")
    };
    let page: Vec<_> = PAGE.lines().filter(rows).collect();
    let expected: Vec<_> = expected.lines().collect();
    assert_eq!(page, expected);
}

#[test]
fn etcd_defines_the_same_texts_and_codes() {
    let mut count = 0;
    for line in ETCD.lines() {
        let (head, text) = line.split_once(": ").unwrap();
        let (name, go_code) = head.split_once(' ').unwrap();
        let ours = Error::ALL.iter().find(|error| error.text() == text);
        let ours = ours.unwrap_or_else(|| panic!("{name} is missing"));
        let sent = match SENT_AS_UNKNOWN.contains(ours) {
            true => "Unknown",
            false => go_code,
        };
        assert_eq!(go_name(ours.code()), sent, "{name}");
        count += 1;
    }
    assert!(count >= 63, "the file has only {count} lines");
}

#[test]
fn a_status_has_the_text_and_the_code() {
    let status: Status = Error::LeaseNotFound.into();
    assert_eq!(status.code(), Code::NotFound);
    assert_eq!(status.message(), "etcdserver: requested lease not found");
}

#[test]
fn reasons_that_are_statuses_have_the_form_of_go() {
    for (reason, error) in [
        (CancelReason::PermissionDenied, Error::PermissionDenied),
        (CancelReason::InvalidAuthToken, Error::InvalidAuthToken),
        (CancelReason::AuthOldRevision, Error::AuthOldRevision),
        (CancelReason::UserEmpty, Error::UserEmpty),
    ] {
        let code = go_name(error.code());
        let text = format!("rpc error: code = {code} desc = {error}");
        assert_eq!(reason.text(), text);
    }
}

fn code(code: Code) -> String {
    format!("{code:?} ({})", code as i32)
}

fn go_name(code: Code) -> String {
    match code {
        Code::Cancelled => "Canceled".to_owned(),
        other => format!("{other:?}"),
    }
}
