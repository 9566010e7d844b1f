//! Runtimes that the client supports, and the errors on those that it does not.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use actix_etcd::{Client, Error, ErrorKind, Outcome};
use testbed::Cluster;
use tokio::runtime::Builder;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, without tokio.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

fn assert_explained(error: &Error, reason: &str) {
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(error.outcome(), Outcome::NotSent, "{error}");
    for text in [reason, "tokio runtime", "enable_all"] {
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn connect_fails_without_tokio() {
    let endpoints = ["http://127.0.0.1:1"];
    let eager = block_on(Client::connect(endpoints)).unwrap_err();
    assert_explained(&eager, "outside");
    let lazy = block_on(Client::builder(endpoints).connect_lazy()).unwrap_err();
    assert_explained(&lazy, "outside");
}

#[test]
fn connect_fails_without_timer() {
    let endpoints = ["http://127.0.0.1:1"];
    for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
        let runtime = builder.enable_io().build().unwrap();
        let eager = runtime.block_on(Client::connect(endpoints)).unwrap_err();
        assert_explained(&eager, "timer");
        let lazy = runtime.block_on(Client::builder(endpoints).connect_lazy());
        assert_explained(&lazy.unwrap_err(), "timer");
    }
}

#[test]
fn client_needs_no_io_of_its_caller() {
    let cluster_runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = cluster_runtime.block_on(Cluster::start(1));
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let etcd = Client::connect(cluster.endpoints()).await.unwrap();
        etcd.put("k", "v").await.unwrap();
        assert_eq!(etcd.get("k").await.unwrap().value().unwrap(), "v");
        let mut watch = etcd.watch("k").start_revision(1).await.unwrap();
        assert!(watch.next().await.is_some());
        etcd.shutdown().await;
    });
}
