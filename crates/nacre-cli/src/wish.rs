//! The granularity that a new pool is to have.

use std::fmt;
use std::str::FromStr;

use nacre_volume::{ParsePolicyError, Policy};

/// What `nacre create --granularity` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// As each device likes it, as far as the system tells what it is.
    Auto,
    /// The same for all devices.
    Policy(Policy),
}

impl Wish {
    pub fn policy(self) -> Option<Policy> {
        match self {
            Self::Auto => None,
            Self::Policy(policy) => Some(policy),
        }
    }
}

impl FromStr for Wish {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, ParsePolicyError> {
        match text {
            "auto" => Ok(Self::Auto),
            policy => policy.parse().map(Self::Policy),
        }
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Policy(policy) => policy.fmt(f),
        }
    }
}
