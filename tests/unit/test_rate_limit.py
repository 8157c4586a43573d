"""The web server's rate limit: a burst, then a steady rate, per client."""

from __future__ import annotations

from driftline.flows.web.guard import MAX_CLIENTS, RateLimit


def test_a_burst_is_followed_by_the_rate() -> None:
    now = [100.0]
    limit = RateLimit(2.0, burst=3, clock=lambda: now[0])
    assert [limit.seconds_to_wait("a") for _ in range(5)] == [0, 0, 0, 1, 1]
    assert limit.seconds_to_wait("b") == 0
    now[0] += 0.5
    assert [limit.seconds_to_wait("a") for _ in range(2)] == [0, 1]
    now[0] += 3600
    assert [limit.seconds_to_wait("a") for _ in range(4)] == [0, 0, 0, 1]


def test_retrying_after_the_reported_time_succeeds() -> None:
    now = [0.0]
    limit = RateLimit(0.25, burst=1, clock=lambda: now[0])
    assert limit.seconds_to_wait("a") == 0
    now[0] += limit.seconds_to_wait("a")
    assert limit.seconds_to_wait("a") == 0


def test_the_number_of_remembered_clients_is_bounded() -> None:
    limit = RateLimit(1.0, burst=1)
    for number in range(MAX_CLIENTS + 10):
        limit.seconds_to_wait(str(number))
    assert len(limit._left) == MAX_CLIENTS
