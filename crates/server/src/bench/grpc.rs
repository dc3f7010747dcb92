//! Client of the Envoy rate-limit service.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpStream;

use super::BenchError;
use super::load::LoadClient;
use crate::rls::messages::{Code, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};

/// Length of the prefix of a gRPC message: its flag and its length.
const PREFIX: usize = 5;

/// A connection with one call in flight.
pub(super) struct GrpcClient(SendRequest<Full<Bytes>>);

impl GrpcClient {
    pub(super) async fn connect(at: SocketAddr) -> Result<GrpcClient, BenchError> {
        let stream = TcpStream::connect(at).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(GrpcClient(sender))
    }
}

impl LoadClient for GrpcClient {
    async fn ask(&mut self, key: u32) -> Result<bool, BenchError> {
        let request = Request::post("http://bench/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(question(key)))
            .map_err(|error| BenchError::Answer(error.to_string()))?;
        let response = self.0.send_request(request).await?;
        let body = response.into_body().collect().await?.to_bytes();
        let message = body.get(PREFIX..).unwrap_or_default();
        match RateLimitResponse::decode(message).map(|answer| answer.overall_code()) {
            Ok(Code::Ok) => Ok(true),
            Ok(Code::OverLimit) => Ok(false),
            Ok(Code::Unknown) => Err(BenchError::Answer("no decision".to_owned())),
            Err(error) => Err(BenchError::Answer(error.to_string())),
        }
    }
}

/// A message about one user, in the domain of the server's own rules.
fn question(key: u32) -> Bytes {
    let entry = |key: &str, value: String| Entry { key: key.to_owned(), value };
    let entries = vec![entry("path", "/search".to_owned()), entry("user", format!("user-{key:08}"))];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    let message = RateLimitRequest { domain: "tidegate".to_owned(), descriptors, hits_addend: 0 };
    let length = u32::try_from(message.encoded_len()).unwrap_or(u32::MAX);
    let mut framed = Vec::with_capacity(PREFIX + message.encoded_len());
    framed.push(0);
    framed.extend(length.to_be_bytes());
    message.encode_raw(&mut framed);
    framed.into()
}
