//! What block maps say: words, runs of pages, the words that map neighbouring pages, and what a
//! process remembers of them.

mod extent_cache;
pub(crate) mod layout;

pub(crate) use extent_cache::{ExtentCache, Translation};

use nacre_types::VolumeOffset;

use layout::{FANOUT, MapWord, WORD_SIZE};

/// Pages that are mapped alike: all holes, or contiguous units with equal flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageRun {
    pub(crate) page: u64,
    pub(crate) count: u64,
    /// The entry of the first page.
    pub(crate) entry: MapWord,
}

impl PageRun {
    /// The page behind the run.
    #[inline]
    pub(crate) fn end(self) -> u64 {
        self.page + self.count
    }

    /// The part of the run from `page` on, which it holds.
    #[inline]
    pub(crate) fn from(self, page: u64) -> Self {
        let skip = page - self.page;
        Self {
            page,
            count: self.count - skip,
            entry: self.entry.advance(skip),
        }
    }
}

/// The words that map neighbouring pages: a lowest node, or the root word alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    pub(crate) words: VolumeOffset,
    first_page: u64,
    pages: u64,
    pub(crate) is_root: bool,
}

impl Leaf {
    /// The root word at `at`, which maps page 0.
    #[inline]
    pub(crate) fn root(at: VolumeOffset) -> Self {
        Self {
            words: at,
            first_page: 0,
            pages: 1,
            is_root: true,
        }
    }

    /// A lowest node whose words lie there, the first one for page `first_page`.
    #[inline]
    pub(crate) fn node(words: VolumeOffset, first_page: u64) -> Self {
        Self {
            words,
            first_page,
            pages: FANOUT,
            is_root: false,
        }
    }

    /// The first page that it maps.
    #[inline]
    pub(crate) fn first_page(self) -> u64 {
        self.first_page
    }

    /// What `node` needs; None for the root word.
    #[inline]
    pub(crate) fn as_node(self) -> Option<(VolumeOffset, u64)> {
        (!self.is_root).then_some((self.words, self.first_page))
    }

    /// Whether it maps a page.
    #[inline]
    pub(crate) fn holds(self, page: u64) -> bool {
        page.wrapping_sub(self.first_page) < self.pages
    }

    /// The page behind the last one that the leaf maps.
    #[inline]
    pub(crate) fn end(self) -> u64 {
        self.first_page + self.pages
    }

    /// Where the word of `page` lies.
    #[inline]
    pub(crate) fn word_at(self, page: u64) -> VolumeOffset {
        self.words.add((page - self.first_page) * WORD_SIZE)
    }
}
