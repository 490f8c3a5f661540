#include "coordinator/grpc/kv_event_service.h"

#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "coordinator/engine/kv_event_log.h"
#include "coordinator/grpc/calls/bell.h"
#include "coordinator/grpc/calls/grpc_call.h"
#include "coordinator/operators/kv_event_json.h"

namespace somnus {
namespace {

void Fill(const BlockEvent& event, int32_t block_size, v1::KvEvent* message) {
  if (event.kind == BlockEvent::Kind::kCleared) {
    message->mutable_all_blocks_cleared();
  } else if (event.kind == BlockEvent::Kind::kRemoved) {
    v1::BlockRemoved* const removed = message->mutable_block_removed();
    removed->mutable_block_hashes()->Add(event.content_ids.begin(), event.content_ids.end());
    removed->set_medium(CacheMediumName(event.medium));
  } else {
    v1::BlockStored* const stored = message->mutable_block_stored();
    stored->mutable_block_hashes()->Add(event.content_ids.begin(), event.content_ids.end());
    if (event.parent_content_id != 0) stored->set_parent_block_hash(event.parent_content_id);
    stored->mutable_token_ids()->Add(event.tokens.begin(), event.tokens.end());
    stored->set_block_size(block_size);
    stored->set_medium(CacheMediumName(event.medium));
    stored->set_cache_salt(event.salt);
  }
}

v1::KvEventBatch ToProto(const KvEventBatch& batch, int32_t block_size) {
  v1::KvEventBatch message;
  message.set_sequence(batch.sequence);
  message.set_timestamp(static_cast<double>(absl::ToUnixMicros(batch.time)) / 1e6);
  message.set_data_parallel_rank(batch.replica);
  for (const BlockEvent& event : batch.events) Fill(event, block_size, message.add_events());
  message.set_snapshot(batch.is_snapshot);
  message.set_snapshot_parts_left(batch.num_parts_left);
  return message;
}

}  // namespace

KvEventServiceImpl::KvEventServiceImpl(const ModelTable* models, ApiKeys admin_api_keys, int32_t max_watchers,
                                       std::shared_ptr<WriteWatch> write_watch)
    : models_(models),
      admin_api_keys_(std::move(admin_api_keys)),
      max_watchers_(max_watchers),
      write_watch_(std::move(write_watch)) {}

grpc::Status KvEventServiceImpl::Watch(grpc::ServerContext* context, const v1::WatchKvEventsRequest* request,
                                       grpc::ServerWriter<v1::KvEventBatch>* writer) {
  if (grpc::Status status = CheckKey(*context, admin_api_keys_); !status.ok()) return status;
  const int32_t watchers = ++num_watchers_;
  const absl::Cleanup leave = [this] { --num_watchers_; };
  if (watchers > max_watchers_) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED,
            absl::StrCat(max_watchers_, " clients follow KV events already, and no more may")};
  }
  try {
    return Follow(context, *request, writer);
  } catch (const std::exception&) {
    return {grpc::StatusCode::INTERNAL, "internal error"};
  }
}

grpc::Status KvEventServiceImpl::Follow(grpc::ServerContext* context, const v1::WatchKvEventsRequest& request,
                                        grpc::ServerWriter<v1::KvEventBatch>* writer) {
  std::optional<int64_t> from;
  if (request.has_from_sequence()) from = request.from_sequence();
  if (from.value_or(0) < 0)
    return ToGrpcStatus(BadRequest("from_sequence", "from_sequence must be at least 0"));
  SharedModel model;
  if (grpc::Status status = FindModel(*models_, request.model(), &model); !status.ok()) return status;
  const std::shared_ptr<KvEventLog>& log = model->kv_events;
  if (log == nullptr)
    return {grpc::StatusCode::FAILED_PRECONDITION,
            "KV events are off: they need --max-kv-events and --enable-prefix-caching"};
  const auto bell = std::make_shared<Bell>();
  const std::unique_ptr<KvEventReader> reader = log->Follow(from, [bell] { bell->Ring(); });
  while (!context->IsCancelled()) {
    const std::shared_ptr<const KvEventBatch> batch = reader->Next();
    if (batch == nullptr) {
      if (reader->ended()) return grpc::Status::OK;
      bell->Wait();
      continue;
    }
    const WriteWatch::Write write(write_watch_.get(), context, nullptr);
    if (!writer->Write(ToProto(*batch, log->block_size())) || write.cancelled()) break;
  }
  return {grpc::StatusCode::CANCELLED, "the client has left"};
}

}  // namespace somnus
