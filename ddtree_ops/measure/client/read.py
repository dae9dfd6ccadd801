"""An exchange's bytes, read after the run: from arrivals to a Sample."""

from __future__ import annotations

from dataclasses import replace

from ddtree_ops.measure.client.exchange import Exchange
from ddtree_ops.measure.client.routes import COUNT, Reading, Route, count, read_event
from ddtree_ops.measure.client.sample import Outcome, Sample
from ddtree_ops.measure.client.wire import Body, read_body

DONE = b"[DONE]"


def read_sample(exchange: Exchange, route: Route, origin: int, *, keep_text: bool = True) -> Sample:
    """The Sample of a finished exchange; `origin` is the run's start in ns."""
    base = Sample(
        index=exchange.index,
        prompt=exchange.prompt,
        start=(exchange.due - origin) / 1e9,
        lag=max(0, exchange.sent - exchange.due) / 1e9,
        end=(exchange.ended - origin) / 1e9,
        warmup=exchange.warmup,
        outcome=exchange.outcome or Outcome.LOST,
        detail=exchange.detail,
        status=exchange.head.status if exchange.head else 0,
    )
    if exchange.head is None:
        return base
    body = read_body(exchange.head, exchange.pieces, exchange.stamps)
    if exchange.head.status != 200:
        overloaded = exchange.head.status in (429, 503)
        outcome = Outcome.OVERLOADED if overloaded else Outcome.HTTP_ERROR
        return replace(base, outcome=outcome, detail=_plain(body.data))
    return _read_stream(base, body, route, origin, keep_text)


def _plain(data: bytes) -> str:
    return data[:300].decode("utf-8", "replace").strip()


def _read_stream(base: Sample, body: Body, route: Route, origin: int, keep_text: bool) -> Sample:
    events = list(body.events())
    if not events:
        return _no_stream(base, body)
    events = [(stamp, event) for stamp, event in events if event != DONE]
    story = _Story(route, origin, keep_text)
    for position, (stamp, event) in enumerate(events):
        story.take(stamp, event, last=position == len(events) - 1)
    return story.sample(base, body)


def _no_stream(base: Sample, body: Body) -> Sample:
    """A 200 that holds no event: an error body, a plain answer, or nothing."""
    if base.outcome not in (Outcome.OK, Outcome.EARLY_END):
        return base
    reading = read_event(Route.NATIVE, body.data) if body.data.strip() else Reading()
    if reading.error and not reading.error.startswith("not "):
        return replace(base, outcome=Outcome.ERROR_BODY, detail=reading.error)
    if body.data.strip():
        detail = f"not a stream: {_plain(body.data)[:120]}"
        return replace(base, outcome=Outcome.ERROR_BODY, detail=detail)
    return replace(base, outcome=Outcome.EARLY_END, detail="the stream held no event")


class _Story:
    """Collects one stream's events; only those that carry more than a count are parsed as JSON."""

    def __init__(self, route: Route, origin: int, keep_text: bool) -> None:
        self.route, self.origin, self.keep_text = route, origin, keep_text
        self.arrivals: list[tuple[float, int]] = []
        self.texts: list[str] = []
        self.info: dict[str, object] = {}
        self.finish = self.error = ""
        self.visible: float | None = None

    def take(self, stamp: int, event: bytes, *, last: bool) -> None:
        counts = COUNT.findall(event) if self._only_a_count(event, last) else ()
        at = (stamp - self.origin) / 1e9
        if counts:
            self._arrived(at, int(counts[-1]))
            return
        reading = read_event(self.route, event)
        self.error = self.error or reading.error
        self.finish = reading.finish or self.finish
        self.info |= reading.info
        if reading.text:
            self.texts.append(reading.text)
            if self.route is Route.CHAT and not reading.reasoning and self.visible is None:
                self.visible = at
        if reading.tokens is not None:
            self._arrived(at, reading.tokens)
        elif reading.text:
            self._arrived(at, None)

    def _only_a_count(self, event: bytes, last: bool) -> bool:
        """Whether nothing but the native route's running count is wanted of this event."""
        return self.route is Route.NATIVE and not (self.keep_text or last or b'"error":' in event)

    def _arrived(self, at: float, tokens: int | None) -> None:
        if tokens is None:
            if not self.arrivals or self.arrivals[-1][1] == 0:
                self.arrivals.append((at, 0))
        elif tokens > (self.arrivals[-1][1] if self.arrivals else 0):
            self.arrivals.append((at, tokens))

    def sample(self, base: Sample, body: Body) -> Sample:
        tokens = count(self.info, "completion_tokens")
        outcome, detail = self._outcome(base, body)
        return replace(
            base,
            outcome=outcome,
            detail=detail,
            arrivals=tuple(self.arrivals),
            tokens=tokens or None,
            prompt_tokens=count(self.info, "prompt_tokens"),
            cached_tokens=_first(
                count(self.info, "cached_tokens"), count(self.info, "prompt_tokens_details", "cached_tokens")
            ),
            reasoning_tokens=_first(
                count(self.info, "reasoning_tokens"),
                count(self.info, "completion_tokens_details", "reasoning_tokens"),
            ),
            verify_steps=count(self.info, "spec_verify_ct"),
            visible=self.visible,
            finish=self.finish,
            text=self._text() if self.keep_text else "",
        )

    def _outcome(self, base: Sample, body: Body) -> tuple[Outcome, str]:
        if self.error:
            return Outcome.ERROR_BODY, self.error
        if base.outcome is Outcome.OK and not (self.finish and body.complete):
            return Outcome.EARLY_END, "the stream stopped without a finish reason"
        if base.outcome is Outcome.OK and not self.arrivals:
            return Outcome.EARLY_END, "finished without a token"
        return base.outcome, base.detail

    def _text(self) -> str:
        """The whole answer, from running texts (native) or from pieces (OpenAI, incremental)."""
        texts = self.texts
        running = self.route is Route.NATIVE and all(
            later.startswith(earlier) for earlier, later in zip(texts[-4:-1], texts[-3:], strict=False)
        )
        return texts[-1] if running and texts else "".join(texts)


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
