//! Head of a request, kept for a retry.

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Uri};

/// A copy of a head that was sent.
///
/// Most copies are never used. The fields are copied into one buffer with one allocation, where cloning the header map
/// would increment and decrement the reference count of each value.
pub(super) struct RetryHead {
    method: Method,
    uri: Uri,
    /// Each field as a length-prefixed name, a length-prefixed value, and whether the value is sensitive.
    fields: Vec<u8>,
}

/// Size of a length prefix.
const LENGTH: usize = size_of::<u32>();

impl RetryHead {
    /// `None` if a field is 4 GiB or longer.
    pub(super) fn of(head: &Parts) -> Option<RetryHead> {
        let mut fields = Vec::with_capacity(512);
        for (name, value) in &head.headers {
            for text in [name.as_str().as_bytes(), value.as_bytes()] {
                fields.extend_from_slice(&u32::try_from(text.len()).ok()?.to_ne_bytes());
                fields.extend_from_slice(text);
            }
            fields.push(u8::from(value.is_sensitive()));
        }
        Some(RetryHead { method: head.method.clone(), uri: head.uri.clone(), fields })
    }

    /// Restores the head, as HTTP/1.1 and without extensions.
    pub(super) fn into_head(self) -> Parts {
        let mut head = empty_head();
        let mut rest = &self.fields[..];
        while let Some((name, value, is_sensitive)) = next_field(&mut rest) {
            // The copied fields were valid.
            if let (Ok(name), Ok(mut value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
                value.set_sensitive(is_sensitive);
                head.headers.append(name, value);
            }
        }
        head.method = self.method;
        head.uri = self.uri;
        head
    }
}

fn next_field<'t>(rest: &mut &'t [u8]) -> Option<(&'t [u8], &'t [u8], bool)> {
    let (name, value) = (next_text(rest)?, next_text(rest)?);
    let (is_sensitive, behind) = rest.split_first()?;
    *rest = behind;
    Some((name, value, *is_sensitive != 0))
}

fn next_text<'t>(rest: &mut &'t [u8]) -> Option<&'t [u8]> {
    let (length, behind) = rest.split_first_chunk::<LENGTH>()?;
    let (text, behind) = behind.split_at_checked(u32::from_ne_bytes(*length) as usize)?;
    *rest = behind;
    Some(text)
}

/// A head without fields.
pub(super) fn empty_head() -> Parts {
    Request::new(()).into_parts().0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_comes_back_as_it_was() {
        let mut secret = HeaderValue::from_static("Bearer x");
        secret.set_sensitive(true);
        let request = Request::put("/a//b?c=%20")
            .header("authorization", secret)
            .header("host", "example.com")
            .header("x-empty", "")
            .header("accept", "text/html")
            .header("accept", "*/*")
            .header("x-bytes", HeaderValue::from_bytes(b"caf\xe9").unwrap());
        let (head, ()) = request.body(()).unwrap().into_parts();
        let again = RetryHead::of(&head).unwrap().into_head();
        assert_eq!((&again.method, &again.uri, again.version), (&head.method, &head.uri, head.version));
        assert_eq!(again.headers, head.headers);
        assert!(again.headers["authorization"].is_sensitive() && !again.headers["host"].is_sensitive());
        assert_eq!(again.headers.get_all("accept").iter().collect::<Vec<_>>(), ["text/html", "*/*"]);
    }
}
