#include "coordinator/grpc/gateway/kv_event_stream.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "coordinator/grpc/calls/bell.h"
#include "coordinator/grpc/gateway/server_facts.h"
#include "coordinator/operators/kv_event_json.h"

namespace somnus::gateway {
namespace {

common::KvCacheTier TierOf(CacheMedium medium) {
  return medium == CacheMedium::kDevice ? common::KV_CACHE_TIER_DEVICE : common::KV_CACHE_TIER_HOST;
}

int32_t LevelOf(CacheMedium medium) { return medium == CacheMedium::kDevice ? 0 : 1; }

void FillStored(const BlockEvent& event, int32_t block_size, common::KvBlocksStored* stored) {
  auto tokens = event.tokens.begin();
  for (const uint64_t id : event.content_ids) {
    common::KvBlock* const block = stored->add_blocks();
    block->set_block_hash(static_cast<int64_t>(id));
    block->mutable_token_ids()->Add(tokens, tokens + block_size);
    block->set_block_size(block_size);
    block->set_cache_level(LevelOf(event.medium));
    tokens += block_size;
  }
  if (event.parent_content_id != 0)
    stored->set_parent_block_hash(static_cast<int64_t>(event.parent_content_id));
  stored->set_tier(TierOf(event.medium));
  stored->set_medium(CacheMediumName(event.medium));
  stored->set_locality(common::KV_CACHE_LOCALITY_LOCAL);
  if (!event.salt.empty()) stored->set_cache_salt(event.salt);
}

void FillRemoved(const BlockEvent& event, common::KvBlocksRemoved* removed) {
  for (const uint64_t id : event.content_ids) removed->add_block_hashes(static_cast<int64_t>(id));
  removed->set_cache_level(LevelOf(event.medium));
  removed->set_tier(TierOf(event.medium));
  removed->set_medium(CacheMediumName(event.medium));
  removed->set_locality(common::KV_CACHE_LOCALITY_LOCAL);
}

}  // namespace

void FillEvents(const KvEventBatch& batch, int32_t block_size, uint64_t* num_events,
                common::KvEventBatch* message) {
  for (const BlockEvent& event : batch.events) {
    common::KvCacheEvent* const to = message->add_events();
    if (!batch.is_snapshot) to->set_event_id(++*num_events);
    if (event.kind == BlockEvent::Kind::kCleared) to->mutable_cleared();
    if (event.kind == BlockEvent::Kind::kStored) FillStored(event, block_size, to->mutable_stored());
    if (event.kind == BlockEvent::Kind::kRemoved) FillRemoved(event, to->mutable_removed());
  }
}

KvEventStream::KvEventStream(::grpc::ServerContext* context, const ServedModel& model,
                             WriteWatch* write_watch, RateMeter* rate,
                             ::grpc::ServerWriter<common::KvEventBatch>* writer)
    : context_(context), model_(model), write_watch_(write_watch), rate_(rate), writer_(writer) {}

::grpc::Status KvEventStream::Follow(const common::SubscribeKvEventsRequest& request) {
  std::optional<int64_t> from;
  if (request.start_sequence_number() != 0) from = static_cast<int64_t>(request.start_sequence_number());
  const auto bell = std::make_shared<Bell>();
  const std::unique_ptr<KvEventReader> reader = model_.kv_events->Follow(from, [bell] { bell->Ring(); });
  const bool load_first = request.load_records_before_first_batch();
  while (!context_->IsCancelled()) {
    if (const std::shared_ptr<const KvEventBatch> batch = reader->Next(); batch != nullptr) {
      if (!WriteBatch(*batch)) break;
      continue;
    }
    if (reader->ended()) return ::grpc::Status::OK;
    const bool may_write_load = load_first || last_sequence_ != 0;
    if (may_write_load && MonotonicNow() - last_write_ >= kLoadInterval && !WriteLoad()) break;
    bell->Wait();
  }
  return {::grpc::StatusCode::CANCELLED, "the client has left"};
}

bool KvEventStream::WriteBatch(const KvEventBatch& batch) {
  common::KvEventBatch message;
  int64_t sequence = batch.sequence;
  if (batch.is_snapshot) {
    // The parts' numbers have no gap, and end with the number of the last batch that they include.
    sequence -= batch.num_parts_left;
    const auto left = static_cast<uint32_t>(batch.num_parts_left);
    if (snapshot_parts_ == 0) snapshot_parts_ = left + 1;
    common::KvSnapshotChunk* const chunk = message.mutable_snapshot();
    chunk->set_index(snapshot_parts_ - 1 - left);
    chunk->set_count(snapshot_parts_);
    chunk->set_blocks(static_cast<uint64_t>(batch.num_blocks));
    if (left == 0) snapshot_parts_ = 0;
  }
  last_sequence_ = static_cast<uint64_t>(std::max<int64_t>(0, sequence));
  message.set_timestamp(static_cast<double>(absl::ToUnixMicros(batch.time)) / 1e6);
  message.set_dp_rank(batch.replica);
  FillEvents(batch, model_.kv_events->block_size(), &num_events_, &message);
  return Write(&message);
}

bool KvEventStream::WriteLoad() {
  common::KvEventBatch message;
  message.set_timestamp(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  message.mutable_load()->set_load_only(true);
  return Write(&message);
}

bool KvEventStream::Write(common::KvEventBatch* message) {
  const EngineStats stats = model_.engine->Stats();
  const int32_t max_num_seqs = MaxNumSeqs(model_, stats);
  last_write_ = MonotonicNow();
  FillLoad(stats, max_num_seqs, rate_->Look(stats.generation_tokens, last_write_), message->mutable_load());
  message->mutable_load()->set_sample(++num_samples_);
  message->set_sequence_number(last_sequence_);
  const WriteWatch::Write write(write_watch_, context_, nullptr);
  return writer_->Write(*message) && !write.cancelled();
}

}  // namespace somnus::gateway
