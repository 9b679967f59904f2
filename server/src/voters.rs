//! A warning about an even number of voters.
//!
//! Kept true: it is given once each time that the number becomes even, and
//! when a member starts so.

/// The number of voters that was last looked at.
#[derive(Default)]
pub(crate) struct Voters(Option<usize>);

impl Voters {
    /// Warns if this is news and even. Before members are known there are none.
    pub(crate) fn look(&mut self, voters: usize) {
        if !self.is_news_and_even(voters) {
            return;
        }
        let tolerated = voters.div_ceil(2) - 1;
        tracing::warn!(
            voters,
            failures_tolerated = tolerated,
            "an even number of voters: one fewer tolerates as many failures, and commits with fewer"
        );
    }

    fn is_news_and_even(&mut self, voters: usize) -> bool {
        let before = self.0.replace(voters);
        voters > 0 && voters.is_multiple_of(2) && before != Some(voters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_number_is_news_once() {
        let mut voters = Voters::default();
        let counts = [0, 0, 2, 2, 3, 3, 4, 4, 2, 1, 2];
        let news = counts.map(|count| voters.is_news_and_even(count));
        let expected = [
            false, false, true, false, false, false, true, false, true, false, true,
        ];
        assert_eq!(news, expected);
    }
}
