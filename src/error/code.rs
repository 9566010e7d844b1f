//! gRPC status codes.

/// The status code of a gRPC response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The request succeeded.
    Ok = 0,
    /// The request was cancelled.
    Cancelled = 1,
    /// An error without a code of its own.
    Unknown = 2,
    /// The request is not valid.
    InvalidArgument = 3,
    /// The deadline passed.
    DeadlineExceeded = 4,
    /// The subject of the request does not exist.
    NotFound = 5,
    /// The subject of the request already exists.
    AlreadyExists = 6,
    /// The user lacks the permission.
    PermissionDenied = 7,
    /// A quota or limit is reached.
    ResourceExhausted = 8,
    /// The system is not in the state that the request requires.
    FailedPrecondition = 9,
    /// The request was aborted.
    Aborted = 10,
    /// The request refers to something outside of the valid range.
    OutOfRange = 11,
    /// The server does not implement the request.
    Unimplemented = 12,
    /// The server failed internally.
    Internal = 13,
    /// The server cannot serve the request now.
    Unavailable = 14,
    /// Data is lost or corrupt.
    DataLoss = 15,
    /// The request lacks valid credentials.
    Unauthenticated = 16,
}

impl Code {
    /// All codes, in the order of their numbers.
    pub(crate) const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// Returns the code with this number; [`Unknown`](Self::Unknown) if there is none.
    pub(crate) fn from_number(number: i32) -> Self {
        let index = usize::try_from(number).ok();
        let code = index.and_then(|index| Self::ALL.get(index));
        code.copied().unwrap_or(Self::Unknown)
    }
}

impl From<tonic::Code> for Code {
    fn from(code: tonic::Code) -> Self {
        Self::from_number(code.into())
    }
}

#[cfg(test)]
mod tests {
    use super::Code;

    #[test]
    fn codes_have_the_numbers_of_grpc() {
        for (number, code) in (0..).zip(Code::ALL) {
            assert_eq!(code as i32, number);
            let grpc = tonic::Code::from_i32(number);
            assert_eq!(Code::from(grpc), code);
            assert_eq!(format!("{grpc:?}"), format!("{code:?}"));
        }
        assert_eq!(Code::from_number(17), Code::Unknown);
        assert_eq!(Code::from_number(-1), Code::Unknown);
    }
}
