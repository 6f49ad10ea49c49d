//! Calls of the kernel that hand out fd numbers, or look at numbers which the program gives them.
//! The placeholders that are kept for the next open must not be in their way.

use libc::{
    SYS_bpf, SYS_epoll_create, SYS_epoll_create1, SYS_eventfd, SYS_eventfd2, SYS_fanotify_init,
    SYS_fsmount, SYS_fspick, SYS_inotify_init, SYS_inotify_init1, SYS_landlock_create_ruleset,
    SYS_memfd_create, SYS_memfd_secret, SYS_mq_open, SYS_perf_event_open, SYS_pidfd_open, SYS_pipe,
    SYS_pipe2, SYS_poll, SYS_ppoll, SYS_pselect6, SYS_select, SYS_signalfd, SYS_signalfd4,
    SYS_socket, SYS_socketpair, SYS_timerfd_create, SYS_userfaultfd,
};

use crate::entry::call::{Call, Verdict};
use crate::entry::errno::Stop;
use crate::entry::table::{ServedCall, number_entry};

/// The calls of this family.
pub const ENTRIES: &[ServedCall] = &[
    number_entry(SYS_socket, "socket", one),
    number_entry(SYS_epoll_create, "epoll_create", one),
    number_entry(SYS_epoll_create1, "epoll_create1", one),
    number_entry(SYS_eventfd, "eventfd", one),
    number_entry(SYS_eventfd2, "eventfd2", one),
    number_entry(SYS_signalfd, "signalfd", one),
    number_entry(SYS_signalfd4, "signalfd4", one),
    number_entry(SYS_timerfd_create, "timerfd_create", one),
    number_entry(SYS_inotify_init, "inotify_init", one),
    number_entry(SYS_inotify_init1, "inotify_init1", one),
    number_entry(SYS_memfd_create, "memfd_create", one),
    number_entry(SYS_memfd_secret, "memfd_secret", one),
    number_entry(SYS_pidfd_open, "pidfd_open", one),
    number_entry(SYS_perf_event_open, "perf_event_open", one),
    number_entry(SYS_userfaultfd, "userfaultfd", one),
    number_entry(SYS_fanotify_init, "fanotify_init", one),
    number_entry(SYS_landlock_create_ruleset, "landlock_create_ruleset", one),
    number_entry(SYS_bpf, "bpf", one),
    number_entry(SYS_mq_open, "mq_open", one),
    number_entry(SYS_fsmount, "fsmount", one),
    number_entry(SYS_fspick, "fspick", one),
    number_entry(SYS_pipe, "pipe", many),
    number_entry(SYS_pipe2, "pipe2", many),
    number_entry(SYS_socketpair, "socketpair", many),
    number_entry(SYS_poll, "poll", many),
    number_entry(SYS_ppoll, "ppoll", many),
    number_entry(SYS_select, "select", many),
    number_entry(SYS_pselect6, "pselect6", many),
];

/// The kernel makes one fd.
fn one(c: &mut Call<'_>) -> Verdict {
    c.vfs().make_room();
    Err(Stop::Native)
}

/// The kernel makes several fds, or looks at several numbers.
fn many(c: &mut Call<'_>) -> Verdict {
    c.vfs().unpark_all();
    Err(Stop::Native)
}
