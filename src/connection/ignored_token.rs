//! Handles a member that responds only to requests without the client's token.
//!
//! etcd's simple tokens contain a raft index, and a member of another cluster waits until it reaches that index: it
//! neither refuses the token nor responds. While another member is ready, the token is valid, and this member is not
//! used. Otherwise the endpoints may lead to another cluster, and the client logs in through this connection. The
//! connection is used once the member has responded to a request with the new token.

use tokio::time::timeout;

use super::{
    ConnectionContext, EndpointId,
    first_contact::{FirstContact, TokenResponse},
    probe::{ProbeResult, request_status},
};
use crate::{
    error::{Error, ErrorKind, Outcome},
    transport::channel::Metadata,
};

/// Returns the contact if its member responds to the token, if necessary after a new login. Fails otherwise.
pub(super) async fn replace_ignored_token(
    contact: FirstContact,
    id: EndpointId,
    context: &ConnectionContext,
) -> Result<FirstContact, Error> {
    let TokenResponse::Missing { generation } = contact.token else {
        return Ok(contact);
    };
    let endpoint = contact.channel.endpoint().name();
    let renewal = async {
        if context.members.other_members(id).any_ready {
            return Err(None);
        }
        let renewed = context.token.renew_through(generation, &contact.channel);
        renewed
            .ok_or(None)?
            .await
            .map_err(|_| None)?
            .map_err(Some)?;
        let metadata = Metadata {
            require_leader: true,
            token: context.token.load_without_waiting().value,
            timeout: None,
        };
        match request_status(&contact.channel, &metadata).await {
            ProbeResult::Failed(error) => Err(Some(error)),
            response => Ok(response),
        }
    };
    let cause = match timeout(context.dial.connect_timeout, renewal).await {
        Ok(Ok(response)) => {
            return Ok(FirstContact {
                response,
                token: TokenResponse::Received,
                ..contact
            });
        }
        Ok(Err(cause)) => cause,
        Err(_) => None,
    };
    let kind = match &cause {
        // No login can succeed.
        Some(cause) if cause.is_auth() || cause.kind() == ErrorKind::ClusterChanged => cause.kind(),
        _ => ErrorKind::MemberUnresponsive,
    };
    let reason = "the member responds only to requests without a token";
    let error = match cause {
        None => Error::new(kind, Outcome::NotSent, reason),
        Some(cause) => {
            let reason = format!("{reason}, and the login failed: {}", cause.brief());
            Error::new(kind, Outcome::NotSent, reason).with_source(cause)
        }
    };
    Err(error.with_endpoint(endpoint))
}
