//! A process that may have children in its memory.

use std::os::fd::AsFd;

use nacre_media::{Caller, FileCall, tell_callers_apart, together};

static ITSELF: Caller = || 0;

#[test]
fn calls_of_memory_that_children_may_keep_are_left_to_the_caller() {
    let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let calls = [FileCall::Sync(file.as_fd()); 2];
    let done = |result: &Option<_>| result.is_none_or(|result| result == Ok(0));
    assert!(together(&calls).unwrap().iter().all(done));
    tell_callers_apart(&ITSELF);
    assert_eq!(together(&calls).unwrap(), [None, None]);
}
