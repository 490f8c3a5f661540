#pragma once
// Bounds of the HTTP and gRPC fronts, each a flag of the coordinator. Plain data.

#include <cstdint>

#include "absl/time/time.h"

namespace somnus {

// What one client, or all of them together, may cost. Sizes in bytes.
struct ApiLimits {
  int64_t max_body_bytes = 32 << 20;            // 413 above
  int32_t max_header_bytes = 64 << 10;          // 431 above
  int32_t max_header_fields = 128;              // 431 above
  int32_t max_json_depth = 64;                  // 400 above
  int32_t max_connections = 2048;               // per listener; accepted and closed above
  int64_t max_buffered_body_bytes = 256 << 20;  // request bodies held by all connections together; 503 above
  int64_t max_stream_backlog_bytes = 4 << 20;   // unsent output of one response; the request is aborted above
  int32_t max_open_calls = 256;                 // of InferenceService.Generate; RESOURCE_EXHAUSTED above
  int32_t max_n = 128;                          // choices per prompt
  int32_t max_prompts = 1024;                   // prompts of one request
  int32_t max_sequences = 1024;                 // prompts times n
  absl::Duration header_timeout = absl::Seconds(10);  // from the first byte to the end of the headers
  absl::Duration body_timeout = absl::Seconds(60);    // from there to the end of the body
  absl::Duration idle_timeout = absl::Seconds(75);    // between two requests of a connection
  absl::Duration write_timeout = absl::Seconds(60);   // without the client taking a byte
};

}  // namespace somnus
