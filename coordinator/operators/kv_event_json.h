#pragma once
// KV events as JSON, under the names that vLLM's events have, and as server-sent events. Pure functions.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "coordinator/engine/kv_event_log.h"

namespace somnus {

// vLLM's name.
const char* CacheMediumName(CacheMedium medium);

nlohmann::ordered_json KvEventBatchJson(const KvEventBatch& batch, int32_t block_size);
// An event with the batch's number as the id, unless parts of a snapshot follow: a client that leaves between
// the parts begins with a new snapshot.
std::string KvServerSentEvent(const KvEventBatch& batch, int32_t block_size);

}  // namespace somnus
