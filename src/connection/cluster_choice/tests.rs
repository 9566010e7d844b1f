use std::time::Duration;

use proptest::prelude::*;

use super::*;

const X: u64 = 0xa;
const Y: u64 = 0xb;

fn id(n: u64) -> EndpointId {
    EndpointId(n)
}

fn voters(count: u64) -> Vec<Voter> {
    let voter = |n| Voter {
        id: id(n),
        name: format!("http://e{n}:2379").into(),
        advertised: false,
    };
    (0..count).map(voter).collect()
}

fn choice(endpoints: u64, follow_change: bool) -> ClusterChoice {
    let mut choice = ClusterChoice::new(follow_change);
    choice.set_voters(voters(endpoints));
    choice
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn undecided(now: Instant) -> ClusterAdmission {
    ClusterAdmission::Undecided {
        until: now + VOTING_TIME,
    }
}

fn is_admitted(admission: &ClusterAdmission) -> bool {
    matches!(admission, ClusterAdmission::Admitted { .. })
}

fn is_foreign(admission: &ClusterAdmission) -> bool {
    matches!(admission, ClusterAdmission::Foreign { .. })
}

#[test]
fn single_endpoint_is_admitted_at_once() {
    let mut choice = choice(1, false);
    assert!(is_admitted(&choice.admission(id(0), X, Instant::now())));
    assert_eq!(choice.chosen(), Some(X));
}

#[test]
fn majority_of_endpoints_decides_at_once() {
    let now = Instant::now();
    let mut choice = choice(3, false);
    assert_eq!(choice.admission(id(0), X, now), undecided(now));
    assert!(is_admitted(&choice.admission(id(2), X, now + ms(1))));
    assert!(is_admitted(&choice.admission(id(0), X, now + ms(1))));
}

#[test]
fn minority_that_responds_first_is_refused() {
    let now = Instant::now();
    let mut choice = choice(3, false);
    assert_eq!(choice.admission(id(0), Y, now), undecided(now));
    assert_eq!(choice.admission(id(1), X, now + ms(5)), undecided(now));
    assert!(is_admitted(&choice.admission(id(2), X, now + ms(9))));
    let refused = |new| ClusterAdmission::Foreign { chosen: X, new };
    assert_eq!(choice.admission(id(0), Y, now + ms(9)), refused(true));
    assert_eq!(choice.admission(id(0), Y, now + ms(99)), refused(false));
    assert_eq!(choice.admission(id(0), 0xc, now + ms(199)), refused(true));
}

#[test]
fn failed_endpoints_are_not_waited_for() {
    let now = Instant::now();
    let mut choice = choice(4, false);
    choice.failed(id(1), now);
    choice.failed(id(2), now);
    assert_eq!(choice.admission(id(0), X, now), undecided(now));
    choice.failed(id(3), now + ms(1));
    assert!(is_admitted(&choice.admission(id(0), X, now + ms(1))));
}

#[test]
fn member_that_starts_first_waits_for_the_others() {
    let now = Instant::now();
    let mut choice = choice(3, false);
    for endpoint in 0..3 {
        choice.failed(id(endpoint), now);
    }
    let started = now + 2 * VOTING_TIME;
    assert_eq!(choice.admission(id(0), Y, started), undecided(started));
    choice.admission(id(1), X, started + ms(1));
    assert!(is_admitted(&choice.admission(id(2), X, started + ms(2))));
    assert!(is_foreign(&choice.admission(id(0), Y, started + ms(3))));
}

#[test]
fn silent_endpoints_are_waited_for_briefly() {
    let now = Instant::now();
    let mut choice = choice(3, false);
    assert_eq!(choice.admission(id(0), X, now), undecided(now));
    let later = now + VOTING_TIME - ms(1);
    assert_eq!(choice.admission(id(0), X, later), undecided(now));
    assert!(is_admitted(&choice.admission(id(0), X, now + VOTING_TIME)));
}

#[test]
fn tie_names_each_endpoint_until_resolved() {
    let now = Instant::now();
    let mut choice = choice(2, false);
    assert_eq!(choice.admission(id(0), X, now), undecided(now));
    let reports = vec![("http://e0:2379".into(), X), ("http://e1:2379".into(), Y)];
    let tie = ClusterAdmission::Tie(reports.clone());
    assert_eq!(choice.admission(id(1), Y, now), tie);
    assert_eq!(choice.admission(id(0), X, now), tie);
    assert_eq!(choice.tie(), Some(&*reports));
    assert_eq!(choice.chosen(), None);

    choice.set_voters(voters(3));
    assert!(is_admitted(&choice.admission(id(2), Y, now + ms(10))));
    assert_eq!(choice.tie(), None);
    assert!(is_foreign(&choice.admission(id(0), X, now + ms(10))));
}

#[test]
fn tie_ends_when_endpoint_fails_or_is_removed() {
    let now = Instant::now();
    for removed in [false, true] {
        let mut choice = choice(2, false);
        choice.admission(id(0), X, now);
        choice.admission(id(1), Y, now);
        if removed {
            choice.set_voters(voters(1));
        } else {
            choice.failed(id(1), now);
        }
        assert!(is_admitted(&choice.admission(id(0), X, now)));
    }
}

#[test]
fn unidentified_member_must_be_given_by_user() {
    let now = Instant::now();
    let mut user = choice(1, false);
    assert!(is_admitted(&user.admission(id(0), 0, now)));
    assert_eq!(user.chosen(), None);
    user.choose_first(X);
    assert!(is_foreign(&user.admission(id(0), Y, now)));

    let mut listed = voters(2);
    listed[1].advertised = true;
    user.set_voters(listed);
    assert!(user.is_advertised(id(1)));
    assert_eq!(
        user.admission(id(1), 0, now),
        ClusterAdmission::Unidentified
    );
    assert!(is_admitted(&user.admission(id(1), X, now)));
}

#[test]
fn client_that_does_not_follow_keeps_its_cluster() {
    let now = Instant::now();
    let mut choice = choice(1, false);
    assert!(is_admitted(&choice.admission(id(0), X, now)));
    choice.closed(1, now);
    assert!(is_foreign(&choice.admission(
        id(0),
        Y,
        now + Duration::from_secs(3600)
    )));
}

#[test]
fn cluster_reported_by_all_endpoints_is_followed() {
    let now = Instant::now();
    let mut choice = choice(2, true);
    choice.admission(id(0), X, now);
    assert!(is_admitted(&choice.admission(id(1), X, now)));
    assert!(is_admitted(&choice.admission(id(0), X, now)));
    choice.closed(1, now);
    assert!(is_foreign(&choice.admission(id(0), Y, now)));
    choice.closed(1, now);
    let until = now + ABSENCE;
    assert_eq!(
        choice.admission(id(0), Y, now),
        ClusterAdmission::Undecided { until }
    );
    assert_eq!(
        choice.admission(id(1), Y, now),
        ClusterAdmission::Admitted { epoch: 2 }
    );
    assert!(is_foreign(&choice.admission(id(0), X, now)));
}

#[test]
fn other_cluster_is_followed_after_absence() {
    let now = Instant::now();
    let mut choice = choice(2, true);
    choice.admission(id(0), X, now);
    choice.failed(id(1), now);
    assert!(is_admitted(&choice.admission(id(0), X, now)));
    choice.closed(1, now);
    choice.failed(id(0), now + ms(10));
    let until = now + ABSENCE;
    let waits = ClusterAdmission::Undecided { until };
    assert_eq!(choice.admission(id(1), Y, now + ms(20)), waits);
    assert!(is_admitted(&choice.admission(id(1), Y, until)));
    // The connection of the earlier epoch does not count.
    choice.closed(1, until);
    assert!(is_foreign(&choice.admission(id(0), X, until)));
}

#[test]
fn returning_member_ends_vote_about_other_cluster() {
    let now = Instant::now();
    let mut choice = choice(2, true);
    choice.admission(id(0), X, now);
    choice.failed(id(1), now);
    assert!(is_admitted(&choice.admission(id(0), X, now)));
    choice.closed(1, now);
    choice.admission(id(1), Y, now + ms(20));
    assert!(is_admitted(&choice.admission(id(0), X, now + ms(30))));
    assert!(is_foreign(&choice.admission(id(1), Y, now + ABSENCE)));
}

#[derive(Debug, Clone)]
enum Step {
    Report { endpoint: u64, cluster: u64 },
    Fail { endpoint: u64 },
    CloseOne,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4u64, 0..4u64).prop_map(|(endpoint, cluster)| Step::Report { endpoint, cluster }),
        1 => (0..4u64).prop_map(|endpoint| Step::Fail { endpoint }),
        2 => Just(Step::CloseOne),
        1 => (0..1500u64).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Connections that are open at the same time never belong to two clusters.
    #[test]
    fn open_connections_share_one_cluster(
        follow in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut choice = choice(4, follow);
        let mut now = Instant::now();
        let mut open: Vec<(u64, u64)> = Vec::new();
        let mut clusters = Vec::new();
        for step in steps {
            match step {
                Step::Report { endpoint, cluster } => {
                    if let ClusterAdmission::Admitted { epoch } = choice.admission(id(endpoint), cluster, now) {
                        open.push((epoch, cluster));
                    }
                }
                Step::Fail { endpoint } => choice.failed(id(endpoint), now),
                Step::CloseOne => {
                    if let Some((epoch, _)) = open.pop() {
                        choice.closed(epoch, now);
                    }
                }
                Step::Wait(time) => now += ms(time),
            }
            let mut identified: Vec<u64> =
                open.iter().map(|(_, cluster)| *cluster).filter(|cluster| *cluster != 0).collect();
            identified.dedup();
            prop_assert!(identified.len() <= 1, "{open:?}");
            prop_assert!(identified.iter().all(|cluster| choice.chosen() == Some(*cluster)));
            if choice.chosen() != clusters.last().copied() {
                clusters.extend(choice.chosen());
            }
        }
        prop_assert!(follow || clusters.len() <= 1, "{clusters:?}");
    }
}
