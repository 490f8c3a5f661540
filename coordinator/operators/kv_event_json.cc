#include "coordinator/operators/kv_event_json.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

// An entry for each block: the keys beside tokens that the block's hash depends on. Null: no block has such
// keys.
Json ExtraKeys(const BlockEvent& event) {
  if (event.salt.empty()) return nullptr;
  Json keys = Json::array({Json::array({event.salt})});
  for (size_t i = 1; i < event.content_ids.size(); ++i) keys.push_back(nullptr);
  return keys;
}

Json EventJson(const BlockEvent& event, int32_t block_size) {
  switch (event.kind) {
    case BlockEvent::Kind::kCleared:
      return {{"type", "AllBlocksCleared"}};
    case BlockEvent::Kind::kRemoved:
      return {{"type", "BlockRemoved"},
              {"block_hashes", event.content_ids},
              {"medium", CacheMediumName(event.medium)}};
    case BlockEvent::Kind::kStored:
      break;
  }
  return {{"type", "BlockStored"},
          {"block_hashes", event.content_ids},
          {"parent_block_hash", event.parent_content_id == 0 ? Json(nullptr) : Json(event.parent_content_id)},
          {"token_ids", event.tokens},
          {"block_size", block_size},
          {"lora_id", nullptr},
          {"medium", CacheMediumName(event.medium)},
          {"lora_name", nullptr},
          {"extra_keys", ExtraKeys(event)}};
}

}  // namespace

const char* CacheMediumName(CacheMedium medium) { return medium == CacheMedium::kDevice ? "GPU" : "CPU"; }

nlohmann::ordered_json KvEventBatchJson(const KvEventBatch& batch, int32_t block_size) {
  Json events = Json::array();
  for (const BlockEvent& event : batch.events) events.push_back(EventJson(event, block_size));
  Json json = {{"seq", batch.sequence},
               {"ts", static_cast<double>(absl::ToUnixMicros(batch.time)) / 1e6},
               {"data_parallel_rank", batch.replica},
               {"events", std::move(events)}};
  if (batch.is_snapshot) json["snapshot_parts_left"] = batch.num_parts_left;
  return json;
}

std::string KvServerSentEvent(const KvEventBatch& batch, int32_t block_size) {
  const std::string id = batch.num_parts_left > 0 ? "" : absl::StrCat("id: ", batch.sequence, "\n");
  const std::string data =
      KvEventBatchJson(batch, block_size).dump(-1, ' ', false, Json::error_handler_t::replace);
  return absl::StrCat(id, "data: ", data, "\n\n");
}

}  // namespace somnus
