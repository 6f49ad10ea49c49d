//! nacre-session
