"""Defects that the simulation must find: a source of the product in which one piece of text is another one."""

# name: (source, what stands there, what stands there instead)
MUTATIONS = {
    # The fence.
    "fence_skips_epoch": (
        "worker/epoch_fence.cc",
        "if (epoch != epoch_ || epoch_ == 0) {",
        "if (epoch_ == 0) {",
    ),
    "epoch_number_is_used_again": (
        "coordinator/group/epoch_former.cc",
        "number_ = std::max(number_, pool_.last_epoch()) + 1;",
        "number_ = 1;",
    ),
    "operations_outlive_their_epoch": ("worker/operation_log.cc", "records_.clear();", ""),
    "abort_outlives_its_epoch": ("worker/comm/epoch_communicator.cc", "abort_reason_.clear();", ""),
    "failure_outlives_its_epoch": ("worker/lifecycle.cc", "if (!for_good_) error_ = absl::OkStatus();", ""),
    "fence_keeps_batch": ("worker/worker.cc", "if (load_.runner() != nullptr) {", "if (false) {"),
    # The rollback.
    "recovery_keeps_steps": (
        "coordinator/engine/step_loop.cc",
        "requests_.EndSuspects(parts_.scheduler.Recover(), reason);\n  SwitchState",
        "SwitchState",
    ),
    "recovery_keeps_prefix_cache": (
        "coordinator/scheduler/scheduler.cc",
        "ForgetComputed(CacheLoss::kFailure);\n  slots_.ForgetFreed();",
        "sequences_.PreemptAll(PreemptionCause::kFailure);\n  slots_.ForgetFreed();",
    ),
    "recovery_frees_slots_again": (
        "coordinator/scheduler/scheduler.cc",
        "ForgetComputed(CacheLoss::kFailure);\n  slots_.ForgetFreed();",
        "ForgetComputed(CacheLoss::kFailure);",
    ),
    "failed_transition_is_not_undone": (
        "coordinator/executor/group_sleep.cc",
        "if (latch_.status().ok()) Abort(transitions",
        "if (false) Abort(transitions",
    ),
    "prepared_transition_outlives_its_epoch": (
        "worker/worker_transition.cc",
        "BeginEpoch() {\n  AbortPrepared();",
        "BeginEpoch() {",
    ),
    "broken_call_is_not_asked_again": (
        "coordinator/executor/collective_calls.cc",
        "asks < kMaxAsks && IsUnknown",
        "asks < 1 && IsUnknown",
    ),
    # The self-check.
    "damage_is_served": (
        "coordinator/engine/commands/wake_up_command.cc",
        "if (*outcome == SelfCheckOutcome::kRefused) return GiveUpDamaged(loop, result.check);",
        "",
    ),
    "damage_keeps_its_backup": (
        "coordinator/engine/commands/wake_up_command.cc",
        "sleep_.Begin(loop, {.level = kMaxSleepLevel});",
        "sleep_.Begin(loop, {.level = 1});",
    ),
    # The checkpoint as the backup.
    "changed_checkpoint_is_restored": (
        "worker/checkpoint_backup.cc",
        "now.ok() ? CheckSameFiles(files_, *now) : now.status();",
        "now.ok() ? absl::OkStatus() : now.status();",
    ),
    "checkpoint_is_the_backup_of_an_update": (
        "worker/worker_weights.cc",
        "return load_.options().checkpoint_is_backup && record_.in_checkpoint() &&",
        "return load_.options().checkpoint_is_backup &&",
    ),
    # Backups that are compressed.
    "compressed_backup_is_not_copied_back": (
        "allocator/compressed_store.cc",
        "status = driver_->CopyFromHost(static_cast<char*>(data) + at, to, batch);",
        "status = absl::OkStatus();",
    ),
    # Spill files as the backup.
    "damaged_spill_is_restored": (
        "allocator/spill_store.cc",
        "if (XXH3_64bits(from, BytesOf(index)) != checksums_[index]) {",
        "if (false) {",
    ),
    "spill_keeps_its_space": (
        "allocator/spill_store.cc",
        "~SpillBackup() override { spill_.file->Give(offset_, RoundUp(bytes_)); }",
        "~SpillBackup() override {}",
    ),
    "full_disk_is_no_error": (
        "allocator/spill_pieces.cc",
        "if (result < 0) return run_.failed(static_cast<int>(-result));",
        "if (result < 0) return operation.piece.bytes;",
    ),
    # The size of the KV cache.
    "fence_keeps_kept_blocks": ("worker/worker.cc", "  cache_.ForgetAll();", "  "),
    "rank_ignores_the_resize": (
        "worker/worker_kv_cache.cc",
        "RETURN_IF_ERROR(load_.runner()->ResizeKvCache(num_blocks));",
        "",
    ),
    "failed_resize_is_not_undone": (
        "coordinator/executor/group_epoch.cc",
        "const absl::Status undone = ResizeRanks(calls_.all(), num_before).status();",
        "const absl::Status undone;",
    ),
    "resize_takes_used_blocks": (
        "coordinator/engine/commands/resize_kv_cache_command.cc",
        "std::max(wanted, blocks.EndOfUsed())",
        "wanted",
    ),
    "resize_takes_freed_slots": (
        "coordinator/engine/commands/resize_kv_cache_command.cc",
        "if (!loop->FlushFreedSlots()) return;",
        "",
    ),
    "resize_takes_kept_blocks": (
        "coordinator/block_manager/block_manager.cc",
        "for (const KeptBlock& block : kept_.blocks()) end = std::max(end, block.device_block + 1);",
        "",
    ),
    "blocks_without_memory_are_given_out": (
        "coordinator/engine/commands/resize_kv_cache_command.cc",
        "if (wanted <= mapped) loop->parts().scheduler.SetBlockLimit(wanted);",
        "",
    ),
    "survivors_keep_their_size": (
        "coordinator/group/epoch_former.cc",
        "RETURN_IF_ERROR(epoch->SetKvCacheSize(snapshots, cache_.num_mapped_blocks()));",
        "",
    ),
    "recovery_takes_the_whole_cache": (
        "coordinator/group/epoch_former.cc",
        "cache_.set_num_mapped_blocks(held_.num_mapped_blocks);",
        "cache_.set_num_mapped_blocks(cache_.num_blocks());",
    ),
    # Blocks that steps swap out.
    "what_nobody_wants_stays_swapped_out": ("worker/kv_host_tier.cc", "    KeepWanted();\n", ""),
    "memory_of_swaps_is_not_counted": (
        "coordinator/executor/grpc_executor.cc",
        "bytes_.host[kKvCacheTag] = reply->kv_host_bytes();",
        "",
    ),
    # The coordinator that comes back.
    "coordinator_begins_at_epoch_1": (
        "coordinator/group/epoch_former.cc",
        "number_ = std::max(number_, pool_.last_epoch()) + 1;",
        "number_ = number_ + 1;",
    ),
    "adopted_sleepers_are_woken": (
        "coordinator/group/epoch_former.cc",
        "held_.residency = HeldBy(snapshots);",
        "",
    ),
    "other_weights_are_adopted": (
        "coordinator/membership/adoption.cc",
        "if (held.weights_version() == 0) return {};",
        "return {};",
    ),
    "half_loaded_weights_are_adopted": (
        "coordinator/membership/adoption.cc",
        "if (held.weights_stale()) return Reset(\"weights_version: the worker's weights are stale\");\n" +
        "  if (held.weights_version() == 0 && held.group_epoch() > 0)",
        "if (false)",
    ),
    # Replicas.
    "calls_of_replicas_do_not_take_turns": (
        "coordinator/replicas/call_turns.cc",
        "return !taken_ && *waiting_.begin() == number;",
        "return *waiting_.begin() == number;",
    ),
    "moved_request_begins_again": (
        "coordinator/scheduler/request_progress.cc",
        "progress.output_tokens.assign(sequence.tokens.end() - sequence.num_outputs(), sequence.tokens.end());",
        "",
    ),
    "replicas_share_a_run_directory": (
        "coordinator/flags/replica_flags.cc",
        "own.run_dir = RunDir::ReplicaPath(flags.run_dir, replica);",
        "own.run_dir = flags.run_dir;",
    ),
    "failed_call_of_replicas_is_not_undone": (
        "coordinator/replicas/replica_calls.cc",
        "chosen.push_back(results_[i].ok() && choose(i));",
        "chosen.push_back(false);",
    ),
    "other_replicas_keep_their_weights": (
        "coordinator/replicas/commands/replica_reload.cc",
        "RunForCaller(change_.live().size() - 1, [&](size_t other) {",
        "RunForCaller(0, [&](size_t other) {",
    ),
    # The recovery.
    "deadlines_follow_the_wall_clock": (
        "base/monotonic.cc",
        "std::chrono::steady_clock::now()",
        "std::chrono::system_clock::now()",
    ),
    "failure_cancels_nothing": (
        "coordinator/executor/failure_latch.cc",
        "for (grpc::ClientContext* call : calls_) call->TryCancel();",
        "",
    ),
    "newcomer_stays_awake": (
        "coordinator/group/epoch_former.cc",
        "request.mutable_asleep_tags()->Add(asleep.begin(), asleep.end());",
        "",
    ),
    "newcomer_needs_no_update": (
        "coordinator/group/held_state.cc",
        "!held.weights.update_id.empty() && std::any_of(snapshots",
        "false && std::any_of(snapshots",
    ),
    "lost_worker_is_not_killed": ("coordinator/group/worker_pool.cc", "processes_->Kill(rank, pid);", ""),
    "given_up_worker_registers_again": (
        "coordinator/membership/membership.cc",
        "if (std::find(taken_out_.begin(), taken_out_.end(), request.worker_id()) != taken_out_.end()) {",
        "if (false) {",
    ),
    "given_up_worker_stays": (
        "coordinator/membership/membership.cc",
        "  return false;\n}\n\nvoid Membership::AssignRanks",
        "  return true;\n}\n\nvoid Membership::AssignRanks",
    ),
}

# Defects that clusters of pipeline stages must find, in the form of MUTATIONS.
MUTATIONS_OF_STAGES = {
    "first_stage_samples": (
        "coordinator/executor/group_epoch.cc",
        "return num_ranks - RanksOfStage(num_ranks, options);",
        "return 0;",
    ),
    "fingerprint_is_the_first_stages": (
        "coordinator/executor/group_epoch.cc",
        "result.fingerprint = responses[sampling_rank].fingerprint();",
        "result.fingerprint = responses[0].fingerprint();",
    ),
    "blocks_are_counted_on_the_first_stage_alone": (
        "coordinator/block_manager/kv_plan.cc",
        "num_blocks = std::min(num_blocks, fits);",
        "if (rank == 0) num_blocks = fits;",
    ),
    "sequence_decodes_in_two_steps_at_once": (
        "coordinator/scheduler/continuation.cc",
        "if (options_.num_stages > 1 && sequence.num_pending > 0) return false;",
        "",
    ),
    "more_steps_than_stages": (
        "coordinator/engine/step_loop.cc",
        "std::max(1, parts_.options.scheduler.num_stages - 1)",
        "std::max(1, parts_.options.scheduler.num_stages)",
    ),
    "transition_leaves_a_step_in_flight": (
        "coordinator/engine/step_loop.cc",
        "while (!steps_.empty() && state() != EngineState::kFailed) Receive();",
        "if (!steps_.empty() && state() != EngineState::kFailed) Receive();",
    ),
    "every_rank_loads_the_first_stage": (
        "worker/load_options.cc",
        "place.stage = parallel.rank() / RanksOfStage(parallel);",
        "place.stage = 0;",
    ),
    "abort_does_not_reach_the_links": (
        "worker/comm/pipeline_communicator.cc",
        "    if (previous_ != nullptr) previous_->Abort(reason);\n    if (next_ != nullptr) next_->Abort(reason);\n",
        "",
    ),
}

# Likewise, for clusters that serve several models.
MUTATIONS_OF_SEVERAL_MODELS = {
    "memory_of_a_wake_up_is_promised_twice": (
        "coordinator/several_models/residency_policy.cc",
        "free_ -= needed;\n      wakes_[waiter] = true;",
        "wakes_[waiter] = true;",
    ),
    "waking_model_holds_no_memory": (
        "coordinator/several_models/residency_policy.cc",
        "return std::max(model.device_bytes, model.resident_bytes);",
        "return model.resident_bytes;",
    ),
    "turn_ends_open_requests": (
        "coordinator/several_models/transitions.cc",
        "case ResidencyAction::kPreempt:\n",
        "case ResidencyAction::kPreempt:\n      request.mode = SleepMode::kAbort;\n",
    ),
    "request_wakes_nobody": (
        "coordinator/several_models/shared_devices.cc",
        "  models_.Wake();\n  return status;",
        "  return status;",
    ),
    "ended_request_stays_open": (
        "coordinator/several_models/shared_devices.cc",
        "model->num_open -= num_requests;",
        "",
    ),
    "host_memory_is_promised_twice": (
        "coordinator/several_models/residency_policy.cc",
        "    if (needed <= host_free_) {\n      host_free_ -= needed;",
        "    if (needed <= host_free_) {",
    ),
    "interrupted_wake_up_gives_its_memory_away": (
        "coordinator/several_models/model_record.cc",
        " && !transition.wakes();",
        ";",
    ),
}

# Every test run has these. The others are built and run by name:
# bazel test //tests/simulation:all_mutations
IN_EVERY_TEST_RUN = [
    "blocks_are_counted_on_the_first_stage_alone",
    "broken_call_is_not_asked_again",
    "calls_of_replicas_do_not_take_turns",
    "deadlines_follow_the_wall_clock",
    "fence_keeps_batch",
    "fence_skips_epoch",
    "given_up_worker_registers_again",
    "memory_of_a_wake_up_is_promised_twice",
    "moved_request_begins_again",
    "recovery_keeps_prefix_cache",
    "recovery_keeps_steps",
]

def mutation_tests(copts, deps):
    """A test for each mutation: mutation_test.cc with the wrong source, which is linked before the good one.

    Args:
      copts: of the simulation.
      deps: what a test of the simulation depends on.
    """
    all = [(name, mutation, "kOneModel") for name, mutation in MUTATIONS.items()]
    all += [(name, mutation, "kStages") for name, mutation in MUTATIONS_OF_STAGES.items()]
    all += [(name, mutation, "kSeveralModels") for name, mutation in MUTATIONS_OF_SEVERAL_MODELS.items()]
    for name, (source, good, wrong), scenario in all:
        (package, file) = source.rsplit("/", 1)
        native.genrule(
            name = name + "_source",
            testonly = True,
            srcs = ["//%s:%s" % (package, file)],
            outs = [name + ".cc"],
            cmd = "$(location mutate.py) $< $@ '%s' '%s'" % (good.replace("'", "'\\''"), wrong.replace("'", "'\\''")),
            tools = ["mutate.py"],
        )
        native.cc_test(
            name = name + "_mutation_test",
            size = "medium",
            srcs = [
                "mutation_test.cc",
                name + ".cc",
            ],
            copts = copts,
            local_defines = ["SOMNUS_SCENARIO=" + scenario],
            tags = ["no_tsan"] + ([] if name in IN_EVERY_TEST_RUN else ["manual"]),
            deps = deps,
        )
    native.test_suite(
        name = "all_mutations",
        tags = ["manual"],
        tests = [name + "_mutation_test" for name, _, _ in all],
    )
