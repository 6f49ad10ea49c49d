//! What a program that is executed gets.

use crate::entry::call::terminated;

/// What is handed to execve. Everything that the pointers lead to lives here or in the program.
#[derive(Default)]
pub struct Image {
    /// argv.
    pub arguments: Vec<usize>,
    /// envp.
    pub environment: Vec<usize>,
    strings: Vec<Vec<u8>>,
}

impl Image {
    /// What begins with the program's own arguments.
    pub fn of(arguments: Vec<usize>) -> Image {
        Image {
            arguments,
            ..Image::default()
        }
    }

    /// Keeps a string and gives its address.
    pub fn keep(&mut self, string: &[u8]) -> usize {
        self.strings.push(terminated(string.to_vec()));
        self.strings.last().map_or(0, |kept| kept.as_ptr() as usize)
    }
}
