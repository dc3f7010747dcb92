//! Memory pages from the operating system, advice on them, and prefetches.
//!
//! On Linux, memory comes from `mmap` and advice goes to `madvise`. Elsewhere memory comes from the allocator, already zeroed, and
//! advice does nothing.
#![allow(unsafe_code)]

use std::alloc::{Layout, handle_alloc_error};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of a huge page on x86-64, and on AArch64 with small pages of 4 kB.
pub(super) const HUGE_PAGE: usize = 2 << 20;

const SMALL_PAGE: usize = 4096;
const WORDS_PER_PAGE: usize = SMALL_PAGE / size_of::<u64>();

/// Words that are initially zero. On Linux, a page takes memory only once it is written to. An allocator may return used
/// memory and clear all of it first, while a check waits.
pub(super) struct ZeroedWords {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: it owns its memory.
unsafe impl Send for ZeroedWords {}
// SAFETY: a shared reference gives access to atomics only.
unsafe impl Sync for ZeroedWords {}

impl ZeroedWords {
    pub(super) fn new(words: usize) -> ZeroedWords {
        let layout = layout_of(words);
        match map_zeroed(layout) {
            Some(start) => ZeroedWords { start: start.cast(), words },
            None => handle_alloc_error(layout),
        }
    }
}

impl Deref for ZeroedWords {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `map_zeroed` returned memory for this many words, aligned for them, and it stays until `self` is dropped. It
        // was zeroed, and every bit pattern is a valid `AtomicU64`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for ZeroedWords {
    fn drop(&mut self) {
        // SAFETY: `start` came from `map_zeroed` with this layout, and nothing borrows the words any longer.
        unsafe { unmap(self.start.cast(), layout_of(self.words)) }
    }
}

/// The layout of `words` words, or of one if there are none: neither `mmap` nor an allocator accepts a size of zero.
fn layout_of(words: usize) -> Layout {
    match Layout::array::<AtomicU64>(words.max(1)) {
        Ok(layout) => layout,
        Err(_) => panic!("{words} words are more than the address space holds"),
    }
}

#[cfg(target_os = "linux")]
fn map_zeroed(layout: Layout) -> Option<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the address is null and `MAP_FIXED` is not set, so the system chooses a free range and replaces no mapping.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), layout.size(), access, kind, -1, 0) };
    if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
}

/// # Safety
/// `start` must come from [`map_zeroed`] with the same layout, and nothing may refer to the memory any longer.
#[cfg(target_os = "linux")]
unsafe fn unmap(start: NonNull<u8>, layout: Layout) {
    // SAFETY: the caller gives up the whole mapping. If the system refuses, it stays mapped.
    let _refused = unsafe { libc::munmap(start.as_ptr().cast(), layout.size()) };
}

#[cfg(not(target_os = "linux"))]
fn map_zeroed(layout: Layout) -> Option<NonNull<u8>> {
    // SAFETY: the size is not zero (see `layout_of`).
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
}

/// # Safety
/// `start` must come from [`map_zeroed`] with the same layout, and nothing may refer to the memory any longer.
#[cfg(not(target_os = "linux"))]
unsafe fn unmap(start: NonNull<u8>, layout: Layout) {
    // SAFETY: `map_zeroed` allocated the memory from the same allocator with the same layout.
    unsafe { std::alloc::dealloc(start.as_ptr(), layout) }
}

/// Requests huge pages under `words`, as far as the words fill whole ones.
pub(super) fn advise_huge(words: &[AtomicU64]) {
    advise(words, HUGE_PAGE, PageAdvice::HugePages);
}

/// Returns the memory of `words` to the system. All words must be zero, and no thread may write to them during the call. They
/// stay zero.
pub(super) fn return_zeroed(words: &[AtomicU64]) {
    advise(words, SMALL_PAGE, PageAdvice::NotNeeded);
}

/// Makes the system provide every page under `words` now.
pub(super) fn populate(words: &[AtomicU64]) {
    for page in words.chunks(WORDS_PER_PAGE) {
        // An atomic operation that keeps the value, even if other threads write at the same time. A read alone would map the
        // shared zero page.
        let word = page[0].load(Ordering::Relaxed);
        let _result = page[0].compare_exchange(word, word, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Prefetches the cache line of a word that will be written to.
#[inline]
pub(super) fn prefetch(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch changes nothing, and the instruction is part of every x86-64 processor.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(word.as_ptr().cast_const().cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

#[derive(Clone, Copy)]
enum PageAdvice {
    HugePages,
    NotNeeded,
}

#[cfg(target_os = "linux")]
fn advise(words: &[AtomicU64], page: usize, advice: PageAdvice) {
    let before = words.as_ptr().align_offset(page);
    let Some(words) = words.get(before..) else { return };
    let bytes = size_of_val(words) / page * page;
    if bytes == 0 {
        return;
    }
    let advice = match advice {
        PageAdvice::HugePages => libc::MADV_HUGEPAGE,
        PageAdvice::NotNeeded => libc::MADV_DONTNEED,
    };
    // SAFETY: the range lies within `words`. Huge pages change no content. Pages that are not needed read as zero afterwards, as
    // they did before, and atomics may change under a shared reference.
    let _refused = unsafe { libc::madvise(words.as_ptr().cast_mut().cast(), bytes, advice) };
}

#[cfg(not(target_os = "linux"))]
fn advise(_words: &[AtomicU64], _page: usize, _advice: PageAdvice) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_words_are_zero_and_can_be_written_to() {
        for words in [0, 1, 700, HUGE_PAGE] {
            let zeroed = ZeroedWords::new(words);
            assert_eq!(zeroed.len(), words);
            assert!(zeroed.iter().all(|word| word.swap(7, Ordering::Relaxed) == 0));
            assert!(zeroed.iter().all(|word| word.load(Ordering::Relaxed) == 7));
        }
    }

    #[test]
    fn advice_leaves_memory_as_it_was() {
        let words: Vec<_> = (0..3 * HUGE_PAGE / 8).map(|number| AtomicU64::new(number as u64)).collect();
        advise_huge(&words);
        populate(&words);
        assert!(words.iter().enumerate().all(|(number, word)| word.load(Ordering::Relaxed) == number as u64));
    }

    #[test]
    fn memory_that_was_returned_is_zero_and_can_be_used_again() {
        let words: Vec<_> = (0..HUGE_PAGE / 8).map(|_| AtomicU64::new(0)).collect();
        return_zeroed(&words);
        populate(&words);
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        words[1000].store(7, Ordering::Relaxed);
        assert_eq!(words[1000].load(Ordering::Relaxed), 7);
    }
}
