"""For each requirement, a change that breaks its code, and the test of its row that has to see that.

A mutant is the file below malamute/, a text that is there once, and what replaces it. A mutant is not to be
clever: who reads both sees what is not done any more.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One change of the code."""

    file: str
    text: str
    replacement: str
    test: str

    def applied_to(self, code: str) -> str:
        """The code with the change. Raises ValueError unless the text is there once."""
        if code.count(self.text) != 1:
            raise ValueError(f"{self.file} has {self.text!r} {code.count(self.text)} times: expected it once")
        return code.replace(self.text, self.replacement)


MUTANTS = {
    # Matching
    "RQ1": Mutant(
        "matching/index.py",
        "{*unconditional, *others}",
        "[*unconditional, *others]",
        "test_add3_several_matching_criteria_are_one_hit",
    ),
    "RQ2": Mutant(
        "matching/fields.py",
        "if values or booleans else Exists(name)",
        "if values or booleans else OneOf.of(name, [True])",
        "test_a_fields_vector",
    ),
    "RQ3": Mutant(
        "matching/fields.py",
        "else [*known, *values]",
        "else [*values]",
        "test_rq3_one_field_may_be_asked_for_with_several_values_of_which_any_will_do",
    ),
    "RQ4": Mutant(
        "matching/fields.py",
        'And(tests) if mode == "all" else Or(tests)',
        "And(tests)",
        "test_a_fields_vector",
    ),
    "RQ5": Mutant(
        "matching/shapes.py",
        "row = find(pick(parts))",
        "row = [find(pick(parts)) for _ in range(1 + sum(map(len, self._tables.values())) // 10)][0]",
        "test_rq5_the_number_of_look_ups_does_not_depend_on_the_number_of_selectors",
    ),
    "RQ6": Mutant(
        "matching/topic.py",
        "if form not in tabled:",
        "if form in tabled:",
        "test_zn22_random_changes_leave_the_index_as_if_built_anew",
    ),
    "RQ7": Mutant(
        "matching/index.py",
        "group = self._by_selector.get(selector) or self._new_group(selector)",
        "group = self._new_group(selector)",
        "test_rq7_identical_selectors_share_one_group_and_one_number",
    ),
    "RQ8": Mutant(
        "matching/index.py",
        "return self._groups_of[subject]\n",
        "return self._groups_of[subject] if all(True for _ in range(self._count)) else ()\n",
        "test_rq8_a_message_takes_a_hundredth_of_what_trying_each_of_10_000_selectors_takes",
    ),
    "RQ9": Mutant(
        "matching/cache.py",
        "        self[subject] = value\n",
        "        self._old[subject] = value\n",
        "test_rq8_rq9_a_seen_subject_takes_a_dozen_instructions_with_10_000_requests_of_which_100_are_distinct",
    ),
    "RQ10": Mutant(
        "matching/index.py",
        "self._by_selector.pop(group.selector, None)",
        "self._by_selector = {s: g for s, g in self._by_selector.items() if g is not group}",
        "test_rq10_each_cost_of_a_search_and_of_a_change_is_flat_from_10_selectors_to_10_000",
    ),
    "RQ11": Mutant(
        "matching/index.py",
        "        self.forget()\n\n    def forget",
        "\n    def forget",
        "test_rq11_a_seen_subject_meets_a_later_selector",
    ),
    "RQ12": Mutant(
        "matching/pattern.py",
        "return (_canonical((*body, ONE)), _canonical(body))",
        "return (_canonical((*body, ONE)),)",
        "test_a_topic_vector",
    ),
    "RQ13": Mutant(
        "matching/index.py",
        "self.members: dict[Hashable, Any] = {}",
        "self.members: dict[Hashable, Any] = dict.fromkeys(range(1_000))",
        "test_rq13_5_000_selectors_of_100_000_criteria_fit_into_62_megabytes",
    ),
    "RQ14": Mutant(
        "matching/topic.py",
        "return self._confirmed(rows, parts) if self._unsure else rows",
        "return rows",
        "test_rq14_a_false_positive_of_the_rows_is_not_delivered",
    ),
    "RQ16": Mutant(
        "matching/expression.py",
        "self.low <= here",
        "self.low > here",
        "test_where",
    ),
    "RQ15": Mutant(
        "matching/bitmap.py",
        "self.next_set_bit(number + 1)",
        "self.next_set_bit(number)",
        "test_first_last_next_and_previous",
    ),
    "WK2": Mutant(
        "matching/cache.py",
        "if len(self) >= self._half:",
        "if not self._half:",
        "test_wk2_wk6_neither_seen_subjects_nor_values_that_nobody_names_fill_the_memory",
    ),
    "WK3": Mutant(
        "matching/constituents.py",
        "if at < many:",
        "if at < many and form[at] != ONE:",
        "test_wk3_the_constituent_tables_are_the_printed_ones_row_by_row",
    ),
    "WK4": Mutant(
        "matching/constituents.py",
        "if not self.open:",
        "if not self._all:",
        "test_wk4_a_topic_with_too_many_parts_is_dropped_with_no_work",
    ),
    "WK5": Mutant(
        "matching/constituents.py",
        "_Position(self.open.copy(), self._all.copy())",
        "_Position(self.open.copy(), Bitmap())",
        "test_wk3_the_constituent_tables_are_the_printed_ones_row_by_row",
    ),
    "WK6": Mutant(
        "matching/constituents.py",
        "row = position.literals.get(part)",
        "row = position.literals.setdefault(part, Bitmap())",
        "test_wk6_values_that_no_subscription_names_add_no_row",
    ),
    "WK7": Mutant(
        "matching/constituents.py",
        "yield self._positions[len(parts)].null",
        "yield from [self._positions[len(parts)].null] * 4",
        "test_wk7_at_most_as_many_rows_as_the_longest_subscription_has_parts",
    ),
    "WK8": Mutant(
        "matching/constituents.py",
        "            if not hits:\n                break\n",
        "",
        "test_wk8_the_work_stops_when_nothing_is_left",
    ),
    "WK9": Mutant(
        "matching/constituents.py",
        "if at >= _length(form):",
        "if at == _length(form):",
        "test_wk9_the_null_rows_after_the_first_change_nothing",
    ),
    "WK10": Mutant(
        "matching/constituents.py",
        "yield self._positions[len(parts)].null",
        "yield from [position.null for position in self._positions[len(parts) :]]",
        "test_wk10_one_long_topic_does_not_slow_the_short_ones",
    ),
    "WK11": Mutant(
        "matching/filter.py",
        "for at in range(0, len(self._kept), WORD_BITS):",
        "for at in [at for at in range(0, len(self._kept), WORD_BITS) if self._word(rows, at // WORD_BITS)]:",
        "test_wk11_one_word_is_enough_when_the_first_bit_hits",
    ),
    "WK12": Mutant(
        "matching/constituents.py",
        "hits = row if hits is None else hits & row",
        "hits = Bitmap([n for n in range(200) if n in row and (hits is None or n in hits)])",
        "test_wk16_in_which_order_the_ways_to_match_cost",
    ),
    "WK13": Mutant(
        "matching/filter.py",
        "if any(MANY not in form or fits(form, list(parts)) for form in self._forms[pattern]):",
        "if any(MANY not in form for form in self._forms[pattern]):",
        "test_wk13_receivers_of_one_feed_take_what_the_vectors_say",
    ),
    "WK14": Mutant(
        "matching/filter.py",
        "if not wider or (len(equal) == len(wider) and number < min(equal)):",
        "if pattern:",
        "test_wk14_a_subsumed_pattern_does_not_grow_the_filter_and_comes_back",
    ),
    "WK15": Mutant(
        "matching/filter.py",
        "kept.sort(key=self._literals)",
        "kept.sort()",
        "test_wk15_patterns_with_more_wildcards_first_need_fewer_words",
    ),
    "WK16": Mutant(
        "matching/filter.py",
        '        parts = subject.split(".")\n        rows = self._rows(parts)\n',
        '        parts = subject.split(".")\n        rows = [self._rows(parts) for _ in self._kept][0]\n',
        "test_wk16_in_which_order_the_ways_to_match_cost",
    ),
    # Selectors between queues
    "XU3": Mutant(
        "matching/index.py",
        "union(conditional) & union(allowed)",
        "union(allowed)",
        "test_xu3_rq14_the_exact_check_is_called_only_for_hits",
    ),
    "XU5": Mutant(
        "core/iteration/credit.py",
        "self.messages = inf if messages == UNLIMITED else",
        "self.messages =",
        "test_xu5_unlimited_credit_never_falls",
    ),
    "XU6": Mutant(
        "core/queue/dispatch.py",
        "            waiting.append(entry)\n            for group in groups:",
        "            waiting.append(entry)\n            for group in ():",
        "test_xu4_xu5_xu6_move_copy_vectors",
    ),
    "XU10": Mutant(
        "matching/subjects.py",
        "return (subject,)",
        "return (subject, subject[:1])",
        "test_plain_subject_families",
    ),
    "XU1": Mutant(
        "matching/family.py",
        "known = FAMILIES.setdefault(family.name, family)",
        "known = FAMILIES.get(family.name, family)",
        "test_xu1_a_family_registers_by_name",
    ),
    "XU2": Mutant(
        "core/queue/dispatch.py",
        "group.search = Search(self._entries.end)",
        "group.search = None",
        "test_xu2_a_queue_without_workers_holds_all_and_drains_in_order",
    ),
    "XU4": Mutant(
        "core/queue/dispatch.py",
        "        if self._may_get(consumer):\n            consumer.group.waiting.append(consumer)",
        "        if self._may_get(consumer):\n            consumer.group.waiting.appendleft(consumer)",
        "test_xu4_xu5_xu6_move_copy_vectors",
    ),
    "XU7": Mutant(
        "core/stream/subscription.py",
        "self.skipped += last - self.cursor + 1",
        "",
        "test_xu7_a_copy_that_cannot_be_made_is_dropped_and_counted",
    ),
    "XU8": Mutant(
        "core/feed/rule.py",
        '"target": str(self.target)',
        '"target": ""',
        "test_xu8_a_selector_is_listed_with_its_seven_fields_and_fetched_by_its_queue_and_name",
    ),
    "XU9": Mutant(
        "core/admin/queue_deletion.py",
        "sources.dismiss(sessions.by_peer[offer.session.peer], offer.source, reason)",
        "queue.leave(offer)",
        "test_with_cascade_all_that_hangs_on_a_queue_ends_with_a_reason",
    ),
    "XU11": Mutant(
        "core/stream/table.py",
        "return self._policy_of(name)._replace(journal=journal)",
        "return self._policy_of(name)",
        "test_a_name_resolves_to_one_store_and_is_found_there_again",
    ),
    "WP1": Mutant(
        "core/stream/subscription.py",
        "if not part.columns.ttls or part.expires > now:",
        "if part:",
        "test_a_message_is_delivered_until_it_expires_and_then_a_gap",
    ),
    "WP2": Mutant(
        "core/stream/live.py",
        "            start = subscription.start\n",
        "            start = subscription.start if all(True for _ in range(len(readers) // 100)) else 0\n",
        "test_wp2_each_of_10_000_subscribers_gets_everything_for_what_it_takes_with_100",
    ),
    "WP3": Mutant(
        "core/stream/live.py",
        "if subscription.state is not LIVE or start > loaded.chunk.last:",
        "if subscription.state is not LIVE and all(True for _ in range(1_000)):",
        "test_wp3_one_that_stands_still_among_a_hundred_costs_neither_work_nor_memory_nor_an_iteration",
    ),
    "WP4": Mutant(
        "core/queue/limits.py",
        "if usage.messages + messages > policy.messages_max:",
        "if usage.messages + messages > policy.messages_max + 1:",
        "test_at_the_limit_all_is_well_and_one_past_it_is_refused",
    ),
    "WP5": Mutant(
        "core/stream/start.py",
        "Position(min(start.value, stream.progress.next))",
        "_head(stream)",
        "test_wp5_wp22_a_replay_begins_at_the_first_a_sequence_or_what_is_new",
    ),
    "WP7": Mutant(
        "core/stream/replay.py",
        "while subscription.ready and subscription.cursor < head:",
        "while subscription.ready and subscription.cursor < head - 1:",
        "test_wp7_from_every_start_it_continues_live_without_gap_or_duplicate",
    ),
    "WP8": Mutant(
        "client/link/demand.py",
        "or any(wanted.matches(subject) for wanted in self._filters)",
        "",
        "test_it_wants_just_what_the_index_would_deliver_to_anybody",
    ),
    "WP9": Mutant(
        "core/queue/queue.py",
        "self.usage.store(*puts(self.kind, self.name, entries), size_bytes=size_bytes)",
        "self.usage.store(*puts(self.kind, self.name, entries if size_bytes < 1 << 20 else ()))",
        "test_a_mail_of_64_megabytes_waits_for_an_absent_recipient_over_a_restart",
    ),
    "WP10": Mutant(
        "core/queue/queue.py",
        "        if not reserved:\n            self.limits.check(",
        "        if reserved:\n            self.limits.check(",
        "test_wp10_a_full_mailbox_refuses_and_loses_nothing",
    ),
    "WP11": Mutant(
        "core/queue/settlement.py",
        "self._limits.trackers.post(self._usage, entries, outcome, reason, bound=bound)",
        "self._limits.trackers.post(self._usage, entries, outcome, reason, bound=bound) if reason else None",
        "test_wp11_each_end_of_a_tracked_message_is_reported_once",
    ),
    "WP12": Mutant(
        "core/session/sessions.py",
        'self._report("left", session, reason="lost")',
        "",
        "test_wp12_clients_appear_and_disappear",
    ),
    "WP13": Mutant(
        "core/queue/dispatch.py",
        "            credit.messages > 0\n",
        "            credit.messages > -10\n",
        "test_wp13_no_request_waits_behind_a_slow_worker",
    ),
    "WP14": Mutant(
        "core/queue/dispatch.py",
        "            credit.messages > 0\n",
        "            credit.messages > -10\n",
        "test_wp14_a_worker_that_comes_first_is_not_flooded",
    ),
    "WP17": Mutant(
        "core/commands.py",
        "self._numbered(session, message, self.mailboxes.send)",
        "self._numbered(session, message, self.services.request)",
        "test_mail_is_there_until_it_is_acknowledged",
    ),
    "WP18": Mutant(
        "core/stream/start.py",
        "FIRST: lambda stream, start: Position(1, quiet=True) if",
        "FIRST: lambda stream, start: Position(2, quiet=True) if",
        "test_wp18_a_subscription_begins_at_its_start",
    ),
    "WP19": Mutant(
        "core/queue/dispatch.py",
        'self._by_sender = usage.kind == "mailbox"',
        "self._by_sender = False",
        "test_a_consumer_is_ready_for_one_sender_and_what_others_send_waits",
    ),
    "WP20": Mutant(
        "core/queue/service.py",
        'about = {"correlation": asked["correlation"]} if "correlation" in asked else {}',
        "about: dict[str, int] = {}",
        "test_a_request_comes_to_its_worker_with_all_its_parts_and_the_replies_find_back",
    ),
    "WP21": Mutant(
        "core/commands.py",
        '    "absent": {Hello: ClientCommands._hello},',
        '    "absent": {Hello: ClientCommands._hello, Ping: ClientCommands._ping},',
        "test_before_hello_every_command_is_unexpected",
    ),
    "WP24": Mutant(
        "core/stream/subscription.py",
        "        self.switched(self.state, sequence)\n",
        "",
        "test_wp24_no_credit_moves_to_replay_and_credit_moves_back_to_live",
    ),
    "WP25": Mutant(
        "core/iteration/credit.py",
        "        self.messages -= messages\n",
        "",
        "test_wp25_no_more_than_the_credit_is_delivered_and_grants_that_overlap_add_up",
    ),
    "WP26": Mutant(
        "core/commands.py",
        "if stage.backlog_bytes + held + size_bytes > self._backlog_bytes_max:",
        "if stage.backlog_bytes > 100 * self._backlog_bytes_max:",
        "test_behind_a_hanging_write_no_more_than_the_backlog_is_accepted",
    ),
    "WP29": Mutant(
        "core/stream/start.py",
        "Position(min(start.value, stream.progress.next))",
        "Position(min(start.value + 1, stream.progress.next))",
        "test_wp29_resuming_after_the_last_received_leaves_no_gap_and_no_duplicate",
    ),
    "WP30": Mutant(
        "core/queue/queue.py",
        "self.steps.run(back, lambda some: self.requeue(some, 0.0), requeues=True)",
        'self.steps.run(back, lambda some: self.settlement.settle(some, "acked"), requeues=True)',
        "test_wp30_what_a_recipient_held_when_it_went_is_redelivered_once_more_and_never_after_its_ack",
    ),
    "WP31": Mutant(
        "core/queue/queue.py",
        "if 0 < policy.attempts_max <= entry.attempts:",
        "if 0 < policy.attempts_max < entry.attempts:",
        "test_wp31_a_request_that_fails_too_often_is_a_dead_letter",
    ),
    "WP32": Mutant(
        "core/stream/stream.py",
        "chunk, last + RESERVE, loaded",
        "chunk, last, loaded",
        "test_wp32_no_sequence_is_used_twice_after_a_crash",
    ),
    "WP33": Mutant(
        "protocol/names.py",
        'name = unquote(parts["name"], errors="strict")',
        'name = parts["name"]',
        "test_a_uri_has_a_default_port_and_takes_any_name",
    ),
    "WP34": Mutant(
        "client/session/batch.py",
        "(plain or None, *frames)",
        '(plain or None, b"".join(frames))',
        "test_streams_carry_them_live_and_in_replay_and_over_a_restart",
    ),
    "WP35": Mutant(
        "matching/index.py",
        "partial = self._partial_of[message.subject]",
        "partial = self._partial_of[message.subject] if all(True for _ in range(self._count)) else None",
        "test_wp35_50_000_clients_are_found_as_trying_each_finds_them_and_cost_a_message_what_5_000_do",
    ),
    "WP36": Mutant(
        "core/stream/live.py",
        "self.held[0].chunk.last <= progress.reserved:\n            if progress.behind and",
        "self.held[0].chunk.last <= progress.durable:\n            if progress.behind and",
        "test_wp36_only_the_first_messages_of_a_new_stream_wait_for_a_commit",
    ),
    "WP37": Mutant(
        "core/stream/gaps.py",
        "if first < self._progress.first_kept:",
        "if first < 0:",
        "test_wp37_a_reader_that_the_ring_has_passed_is_notified_of_the_exact_gaps_and_the_file_is_constant",
    ),
    "WP38": Mutant(
        "core/stream/replay.py",
        "subscription.skip(head - 1, NO_JOURNAL)",
        "subscription.move(head)",
        "test_wp38_a_stream_without_a_history_drops_and_counts_and_shows_what_there_was_no_credit_for",
    ),
    "WP39": Mutant(
        "core/stream/replay.py",
        "self._pass(subscription, loaded, loaded.places(selector, start, stop), stop)",
        "self._pass(subscription, loaded, range(start, stop), stop)",
        "test_wp39_a_replay_applies_the_criteria_and_the_filter_of_its_reader",
    ),
    "WP40": Mutant(
        "matching/subjects.py",
        "for length in self._lengths if length <= characters]",
        "for length in self._lengths if length < characters // 2]",
        "test_every_family_reaches_through_a_broker_live",
    ),
    "WP42": Mutant(
        "core/queue/mailbox.py",
        "enqueue(mailbox, session.address, session.address, message, session.quotas)",
        'enqueue(mailbox, session.address, "", message, session.quotas)',
        "test_wp42_a_message_comes_with_its_bodies_and_the_sender_that_the_broker_stamped",
    ),
    "WP43": Mutant(
        "core/queue/queue.py",
        "waits = confirmed or not is_early or self.states.uncommitted > 0",
        "waits = not is_early or self.states.uncommitted > 0",
        "test_wp43_a_message_is_confirmed_and_delivered_once_it_is_stored",
    ),
    "WP44": Mutant(
        "core/iteration/credit.py",
        "return self.messages > 0 and self.bytes > 0",
        "return self.bytes > 0",
        "test_wp44_a_recipient_holds_as_many_as_its_credit",
    ),
    "WP45": Mutant(
        "core/queue/queue.py",
        "self.usage.store(*puts(self.kind, self.name, entries), size_bytes=size_bytes)",
        'self.usage.store(*puts(self.kind, self.name, entries if self.kind == "mailbox" else ()))',
        "test_wp45_a_request_without_a_worker_survives_a_restart",
    ),
    "WP46": Mutant(
        "core/queue/enqueue.py",
        "repeat(sender), command.subjects",
        "repeat(sender[:1]), command.subjects",
        "test_wp46_a_request_shows_the_worker_who_asked_and_what",
    ),
    "WP47": Mutant(
        "core/queue/service.py",
        "strict=True) if final]\n",
        "strict=True)]\n",
        "test_wp47_partial_replies_come_in_order_and_give_no_credit_back",
    ),
    "WP48": Mutant(
        "core/queue/service.py",
        "if name.startswith(RESERVED_PREFIX) and name not in self.mailboxes.by_name:",
        "if session.address != name and not self.mailboxes.by_name[name].consumers:",
        "test_wp48_a_reply_waits_for_its_requester_over_a_restart",
    ),
    "WP49": Mutant(
        "pair/rules.py",
        "        if self.name not in value.in_sync:\n            self._tell(",
        "        if self.name not in value.members:\n            self._tell(",
        "test_only_a_member_in_sync_takes_over",
    ),
    "WP50": Mutant(
        "core/feed/table.py",
        "        if way is not None:\n",
        "        if way is not None and len(way) < 2:\n",
        "test_a_feed_that_would_close_a_circle_is_refused_and_named",
    ),
    "WP51": Mutant(
        "core/feed/stream_feed.py",
        "        self.target.put(columns, self.name.source, keys_of(self.rule.key, columns))\n",
        "",
        "test_what_matches_is_passed_on_to_every_kind_of_place",
    ),
    "WP52": Mutant(
        "pack/discovery.py",
        "good = rule_of(Name).holds(name) and rule_of(Urls)",
        "good = rule_of(Urls)",
        "test_a_broker_is_found_while_it_is_announced_and_a_forgery_is_left_out",
    ),
    "WP54": Mutant(
        "../tests/bench/lab/match.py",
        '"a message, 500,000 messages a second", 2.0, "µs"',
        '"a message, 500,000 messages a second", 20.0, "µs"',
        "test_wp54_wp56_openamqs_test_matches_as_many_as_theirs_beside_their_figures_and_the_goal",
    ),
    "WP56": Mutant(
        "../tests/bench/lab/match.py",
        "WILDCARD_CHANCE = 0.535",
        "WILDCARD_CHANCE = 0.4",
        "test_wp54_wp56_openamqs_test_matches_as_many_as_theirs_beside_their_figures_and_the_goal",
    ),
    "WP57": Mutant(
        "matching/bitmap.py",
        "data = self.serialize()",
        'data = b"".join(number.to_bytes(4, "little") for number in self)',
        "test_wp57_a_bitmap_is_compressed",
    ),
    "ZN1": Mutant(
        "gateway/restms/service.py",
        "address=pipe.name, default=True",
        "address=pipe.name, default=False",
        "test_zn1_types_are_empty_and_the_default_join_is_the_servers",
    ),
    "ZN2": Mutant(
        "gateway/restms/feed_types.py",
        '{"": FeedType(_exact, counts=True)}',
        '{"": FeedType(_exact)}',
        "test_the_request_and_response_example_of_3_defaults",
    ),
    "ZN3": Mutant(
        "gateway/restms/feed_types.py",
        '"topic": FeedType(_topic),',
        '"topic": FeedType(_exact),',
        "test_zn3_each_type_of_feed_and_join_routes_as_it_says",
    ),
    "ZN4": Mutant(
        "gateway/restms/feed_types.py",
        "(*DEFAULT_PROFILES, *loaded, *more)",
        "(*DEFAULT_PROFILES, *more)",
        "test_zn4_a_plug_in_adds_a_profile_by_its_entry_point",
    ),
    "ZN6": Mutant(
        "gateway/restms/service.py",
        "if feed.imported or feed == BUILT_IN:",
        "if feed == BUILT_IN:",
        "test_zn6_what_the_broker_has_is_a_feed_that_is_locked",
    ),
    "ZN7": Mutant(
        "gateway/restms/documents.py",
        "value: dict[str, Any] = dict(element.attributes)",
        'value: dict[str, Any] = {"xmlns": NAMESPACE, **element.attributes}',
        "test_zn7_json_has_no_name_space",
    ),
    "ZN8": Mutant(
        "gateway/restms/signals.py",
        "        self._event.set()\n",
        "",
        "test_zn8_a_request_waits_until_there_is_a_change",
    ),
    "ZN9": Mutant(
        "gateway/restms/documents.py",
        "value.setdefault(child.name, []).append(_as_json(child))",
        "value[child.name] = [_as_json(child)]",
        "test_zn9_xml_and_json_say_the_same",
    ),
    "ZN10": Mutant(
        "gateway/restms/publishing.py",
        'for element in root.each("message")]',
        'for element in [*root.each("message")][:1]]',
        "test_zn10_three_messages_of_one_post_arrive_in_order",
    ),
    "ZN12": Mutant(
        "gateway/restms/messages.py",
        '    "type",\n)\n',
        '    "type",\n    "app_id",\n    "sender_id",\n)\n',
        "test_zn12_a_reader_learns_who_was_authenticated_whoever_a_poster_says_to_be",
    ),
    "ZN14": Mutant(
        "gateway/restms/service.py",
        "if feed.password and not await",
        "if feed.password and given and not await",
        "test_zn14_who_may_post_by_the_rules_needs_the_password_too",
    ),
    "ZN15": Mutant(
        "gateway/restms/feed_types.py",
        '{"loopback": FeedType(_own)}',
        '{"loopback": FeedType(_everything)}',
        "test_zn15_a_loopback_feed_returns_a_clients_own_posts",
    ),
    "ZN17": Mutant(
        "matching/fields.py",
        "return Within(latitude, longitude, area_of(numbers))",
        "return Within(longitude, latitude, area_of(numbers))",
        "test_geo",
    ),
    "ZN18": Mutant(
        "matching/index.py",
        "group = self._by_selector.get(selector) or self._new_group(selector)",
        "group = self._new_group(selector)",
        "test_zn18_10_000_distinct_selectors_match_as_brute_force",
    ),
    "ZN19": Mutant(
        "core/feed/stream_feed.py",
        "        self.stream.cursors.commit(self.name.cursor, sequences[-1])\n        self.delivered",
        "        pass\n        self.delivered",
        "test_zn19_over_crashes_a_feed_goes_on_behind_what_it_has_put",
    ),
    "ZN20": Mutant(
        "core/iteration/effects.py",
        "first = (self._turn >> 32) * len(equals) >> 32",
        "first = 0",
        "test_zn20_each_of_ten_equal_readers_is_the_first_of_them_in_a_tenth_of_all_publishes",
    ),
    "ZN21": Mutant(
        "matching/shapes.py",
        "row = find(pick(parts))",
        "row = [find(pick(parts)) for _ in range(1 + sum(map(len, self._tables.values())) // 10)][0]",
        "test_zn21_look_ups_and_changes_cost_the_same_whatever_the_number_of_selectors",
    ),
    "ZN22": Mutant(
        "matching/index.py",
        "        self._classes.remove(group.selector)\n",
        "",
        "test_zn22_random_changes_leave_the_index_as_if_built_anew",
    ),
    "ZN23": Mutant(
        "matching/criteria.py",
        "                del self._families[name], self._uses[name]\n                self._sort()\n",
        "                del self._families[name], self._uses[name]\n",
        "test_zn23_only_families_in_use_are_run",
    ),
    "ZN24": Mutant(
        "matching/topic.py",
        "rows = self._shapes.rows(parts)\n",
        "rows = self._shapes.rows(parts[:1])\n",
        "test_the_news_example_of_restms",
    ),
    "ADD1": Mutant(
        "matching/cache.py",
        "if len(self) >= self._half:",
        "if len(self) >= 4 * self._half:",
        "test_wk2_add1_subjects_beyond_the_cache_keep_no_more_than_it_may_hold",
    ),
    "ADD3": Mutant(
        "matching/index.py",
        "{*unconditional, *others}",
        "[*unconditional, *others]",
        "test_add3_several_matching_criteria_are_one_hit",
    ),
    "XU12": Mutant(
        "journal/memory.py",
        "if isinstance(operation, AppendChunk):\n                appended",
        "if isinstance(operation, AppendChunk) and not operation.chunk.large:\n                appended",
        "test_a_chunk_is_read_as_it_was_written",
    ),
    "WP6": Mutant(
        "core/stream/stream.py",
        "self.effects.stage.store(Reserve(self.name, self.progress.next - 1))",
        "self.effects.stage.store(Reserve(self.name, self.progress.next + 9))",
        "test_wp6_a_history_is_switched_on_without_a_word_to_publishers",
    ),
    "WP16": Mutant(
        "client/session/session.py",
        "        self._enter(State.READY)\n",
        "",
        "test_hello_comes_first_and_the_session_is_ready_after_welcome",
    ),
    "WP27": Mutant(
        "core/session/sessions.py",
        "        self._release(session)\n        if self.by_address",
        "        if self.by_address",
        "test_a_request_of_a_killed_worker_is_with_another_one_long_before_its_ack_timeout",
    ),
    "WP28": Mutant(
        "server/transport.py",
        "            except Exception as error:\n                yield peer, error",
        "            except ValueError as error:\n                yield peer, error",
        "test_random_cut_and_mutated_frames_get_an_error_each_and_change_nothing",
    ),
    "WP41": Mutant(
        "core/queue/mailbox.py",
        "enqueue(mailbox, session.address, session.address, message, session.quotas)",
        "enqueue(mailbox, session.address, session.mailbox, message, session.quotas)",
        "test_wp41_a_message_has_the_sender_that_the_broker_knows",
    ),
    "ZN5": Mutant(
        "gateway/restms/messages.py",
        '{"href": href, **_properties(mail, *PROPERTIES)}',
        '{"href": href, "feed": "default", **_properties(mail, *PROPERTIES)}',
        "test_the_request_and_response_example_of_3_defaults",
    ),
    "ZN13": Mutant(
        "gateway/restms/registry.py",
        "self._known[message.subject] = Defined(value, changed_ns, message.time_ns)",
        "self._known.setdefault(message.subject, before or Defined(value, changed_ns, message.time_ns))",
        "test_two_gateways_before_a_broker_have_the_same_definitions",
    ),
    "ZN16": Mutant(
        "gateway/restms/service.py",
        'kind, element.get("title"), storage, owner)',
        'kind, element.get("title"), PIPE_STORAGES[0], owner)',
        "test_zn16_what_is_on_disk_outlives_the_broker_and_what_is_in_memory_does_not",
    ),
    "ADD2": Mutant(
        "matching/regex.py",
        "_OPTIONS.max_mem = REGEX_BYTES",
        "_OPTIONS.max_mem = 1 << 30",
        "test_an_expression_whose_program_is_too_large_is_refused",
    ),
    "WP15": Mutant(
        "core/admin/clients.py",
        '        "address": session.address,\n',
        '        "address": session.ident,\n',
        "test_what_a_broker_has",
    ),
    # Adapters
    "AD1": Mutant(
        "integrations/kombu.py",
        'if eta := headers.get("eta"):',
        'if eta := headers.get("not yet"):',
        "test_a_task_is_a_message_that_the_tools_of_the_broker_show",
    ),
    "AD2": Mutant(
        "integrations/kombu.py",
        "self._settle(delivery_tag, Mail.release)",
        "self._settle(delivery_tag, Mail.ack)",
        "test_what_a_consumer_has_at_its_end_is_released_and_not_sent_again",
    ),
    "AD3": Mutant(
        "integrations/celery.py",
        'on_interval is not None and meta["status"] in states.PROPAGATE_STATES',
        "False",
        "test_a_failure_is_returned_after_a_look_for_that_of_a_parent",
    ),
    "AD4": Mutant(
        "integrations/taskiq.py",
        "delivery.mail.attempts >= self._max_tries",
        "delivery.mail.attempts > self._max_tries",
        "test_a_failed_task_is_tried_again_and_then_is_a_dead_letter_with_its_result",
    ),
    "AD5": Mutant(
        "integrations/django/backend.py",
        "(int(task.priority) + 100) * 9 // 200",
        "4",
        "test_priorities_are_steps_of_the_broker_and_queues_are_apart",
    ),
    "AD6": Mutant(
        "integrations/mcp.py",
        'if not self._allows(needed := TOOLS.get(name, "")):',
        'if not (needed := TOOLS.get(name, "")) and needed:',
        "test_an_agent_reads_alone_unless_more_is_allowed",
    ),
    "AD7": Mutant(
        "integrations/kombu.py",
        "if unknown := sorted(options.keys() - {*known}):",
        "if unknown := []:",
        "test_a_wrong_option_is_refused_at_the_start",
    ),
}

UNBROKEN = {
    "ZN11": "a sample of the guide, which is not in the package",
}
"""Rows without a mutant, and why."""
