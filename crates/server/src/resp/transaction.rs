//! Commands of a transaction, queued from `MULTI` to `EXEC`.

use super::request::RequestWords;
use super::word_span::WordSpan;

/// Maximum size of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionBounds {
    /// Maximum number of commands.
    pub commands: usize,
    /// Maximum number of bytes. A word counts its length plus 16 bytes on 64-bit machines.
    pub bytes: usize,
}

/// Size of a queued word in addition to its text.
pub(super) const WORD_OVERHEAD: usize = size_of::<WordSpan>();

/// The transaction exceeds its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QueueFull {
    #[error("a transaction has at most {0} commands here (resp.transaction_commands): send several")]
    Commands(usize),
    #[error("a transaction has at most {0} bytes here (resp.transaction_bytes): send several")]
    Bytes(usize),
}

/// An open transaction.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    queue: CommandQueue,
    is_aborted: bool,
}

impl Transaction {
    /// Queues a command. Ignored once the transaction is aborted, since its commands are never executed.
    ///
    /// # Errors
    /// If the transaction exceeds its bounds. It is then aborted.
    pub(super) fn push(&mut self, words: RequestWords<'_>, bounds: TransactionBounds) -> Result<(), QueueFull> {
        if self.is_aborted {
            return Ok(());
        }
        let pushed = self.queue.push(words, bounds);
        if pushed.is_err() {
            self.abort();
        }
        pushed
    }

    /// Aborts the transaction, so that `EXEC` fails.
    pub(super) fn abort(&mut self) {
        *self = Transaction { queue: CommandQueue::default(), is_aborted: true };
    }

    /// The queued commands; `None` if the transaction was aborted.
    pub(super) fn into_queue(self) -> Option<CommandQueue> {
        (!self.is_aborted).then_some(self.queue)
    }
}

/// Queued commands, in order.
#[derive(Debug, Default)]
pub(super) struct CommandQueue {
    bytes: Vec<u8>,
    spans: Vec<WordSpan>,
    /// End index of each command's words in `spans`.
    ends: Vec<usize>,
    /// Number of executed commands.
    done: usize,
}

impl CommandQueue {
    fn push(&mut self, words: RequestWords<'_>, bounds: TransactionBounds) -> Result<(), QueueFull> {
        if self.ends.len() >= bounds.commands {
            return Err(QueueFull::Commands(bounds.commands));
        }
        let bytes = self.bytes.len() + words.iter().map(<[u8]>::len).sum::<usize>();
        if bytes + (self.spans.len() + words.len()) * WORD_OVERHEAD > bounds.bytes {
            return Err(QueueFull::Bytes(bounds.bytes));
        }
        for word in words.iter() {
            let begin = self.bytes.len();
            self.bytes.extend_from_slice(word);
            self.spans.push(WordSpan { begin, end: self.bytes.len() });
        }
        self.ends.push(self.spans.len());
        Ok(())
    }

    /// Number of commands still to be executed.
    pub(super) const fn len(&self) -> usize {
        self.ends.len() - self.done
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next command.
    #[inline]
    pub(super) fn front(&self) -> Option<RequestWords<'_>> {
        let end = *self.ends.get(self.done)?;
        let begin = self.done.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(RequestWords::new(&self.bytes, &self.spans[begin..end]))
    }

    /// Removes [`CommandQueue::front`]. Frees the memory after the last command.
    pub(super) fn pop(&mut self) {
        self.done += 1;
        if self.done >= self.ends.len() {
            *self = CommandQueue::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: TransactionBounds = TransactionBounds { commands: 3, bytes: 100 };

    fn push(transaction: &mut Transaction, words: &[&[u8]]) -> Result<(), QueueFull> {
        let bytes = words.concat();
        let mut end = 0;
        let span = |word: &&[u8]| {
            end += word.len();
            WordSpan { begin: end - word.len(), end }
        };
        let spans: Vec<WordSpan> = words.iter().map(span).collect();
        transaction.push(RequestWords::new(&bytes, &spans), BOUNDS)
    }

    #[test]
    fn commands_come_out_as_they_went_in() {
        let mut transaction = Transaction::default();
        let commands: [&[&[u8]]; 3] = [&[b"PING"], &[b"ECHO", b"\0\xff"], &[b"ECHO", b""]];
        for words in commands {
            push(&mut transaction, words).unwrap();
        }
        let mut queue = transaction.into_queue().unwrap();
        for (words, left) in commands.iter().zip([3, 2, 1]) {
            assert_eq!(queue.len(), left);
            assert_eq!(queue.front().unwrap().iter().collect::<Vec<_>>(), *words);
            queue.pop();
        }
        assert!(queue.is_empty() && queue.front().is_none() && queue.bytes.capacity() == 0);
    }

    #[test]
    fn a_transaction_is_bounded_and_keeps_nothing_once_it_is_aborted() {
        let mut transaction = Transaction::default();
        for _ in 0..3 {
            push(&mut transaction, &[b"PING"]).unwrap();
        }
        assert_eq!(push(&mut transaction, &[b"PING"]), Err(QueueFull::Commands(3)));
        assert_eq!(push(&mut transaction, &[b"PING"]), Ok(()));
        assert_eq!(transaction.queue.bytes.capacity(), 0);
        assert!(transaction.into_queue().is_none());
        let mut transaction = Transaction::default();
        assert_eq!(push(&mut transaction, &[&[b'x'; 100 - WORD_OVERHEAD + 1]]), Err(QueueFull::Bytes(100)));
        let mut transaction = Transaction::default();
        assert_eq!(push(&mut transaction, &[&[b'x'; 100 - WORD_OVERHEAD]]), Ok(()));
    }
}
