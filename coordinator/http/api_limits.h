#pragma once
// Bounds of the HTTP and gRPC fronts; the bounds of ApiLimits are flags of the coordinator. Plain data.

#include <cstdint>

#include "absl/time/time.h"

namespace somnus {

// Bounds of the resources that one client, or all clients together, may use. Sizes are in bytes.
struct ApiLimits {
  int64_t max_body_bytes = 32 << 20;  // 413 above
  // RESOURCE_EXHAUSTED above. gRPC parses a message before anything can be counted, and a message of many
  // empty strings grows 20 to 25 times (estimated from the layout of strings).
  int64_t max_grpc_message_bytes = 4 << 20;
  int32_t max_header_bytes = 64 << 10;          // 431 above
  int32_t max_header_fields = 128;              // 431 above
  int32_t max_json_depth = 64;                  // 400 above
  int32_t max_json_values = 1'000'000;          // 400 above
  int32_t max_connections = 2048;               // per listener; above, the longest idle connection is closed
  int64_t max_buffered_body_bytes = 256 << 20;  // request bodies held by all connections together; 503 above
  int64_t max_stream_backlog_bytes = 4 << 20;   // of one stream, made but not sent; aborted above
  int64_t max_response_bytes = 128 << 20;       // of a response that is sent whole; 400 above
  int64_t max_buffered_response_bytes = 512 << 20;  // of all such responses together; 503 above
  int64_t max_stored_responses = 1024;              // of /v1/responses, for later requests; 0: none
  int64_t max_stored_response_bytes = 64 << 20;     // of all such responses together; the oldest goes above
  int64_t max_queued_output_bytes = 64 << 20;       // of one HTTP request, not text yet; aborted above
  int32_t max_open_calls = 256;                     // of InferenceService.Generate; RESOURCE_EXHAUSTED above
  // Of ControlService.WatchTransition at once; RESOURCE_EXHAUSTED above. Each watcher asks every rank again
  // and again.
  int32_t max_transition_watchers = 4;
  // Of KvEventService.Watch at once, RESOURCE_EXHAUSTED above; and as many of GET /kv_events, 429 above.
  int32_t max_kv_event_watchers = 8;
  // Operators' calls of a kind and a model that are under way or wait, by HTTP and again by gRPC; above, a
  // call is refused with 429 or RESOURCE_EXHAUSTED.
  int32_t max_lifecycle_calls = 8;
  // Calls of ControlService at once, of all kinds and models, each with a thread; RESOURCE_EXHAUSTED above.
  // A bound above max_lifecycle_calls times kinds times models leaves a thread to calls that end a wait.
  int32_t max_control_calls = 1024;
  int32_t max_n = 128;                    // choices per prompt
  int32_t max_prompts = 1024;             // prompts of one request
  int32_t max_sequences = 1024;           // prompts times n
  int64_t max_prompt_logprobs = 1 << 20;  // of all prompts and choices, alternatives counted
  int32_t max_stop_strings = 4;           // of one request, as in OpenAI and vLLM
  int32_t max_stop_string_bytes = 1024;   // of one stop string
  int32_t max_stop_token_ids = 128;       // of one request, as are the next three
  int32_t max_logit_bias = 1024;          // entries
  int32_t max_allowed_token_ids = 1024;
  int32_t max_bad_words = 128;
  int32_t max_bad_word_tokens = 64;  // of one bad word
  // The time of a request from arrival to end, also where the request asks for more; 0: no bound. 504,
  // DEADLINE_EXCEEDED then.
  absl::Duration max_request_timeout = absl::ZeroDuration();
  absl::Duration header_timeout = absl::Seconds(10);  // from the first byte to the end of the headers
  absl::Duration body_timeout = absl::Seconds(60);    // from the end of the headers to the end of the body
  absl::Duration idle_timeout = absl::Seconds(75);    // between two requests of a connection
  absl::Duration write_timeout = absl::Seconds(60);   // without the client taking a byte
  // Without a message of the client of ControlService.UpdateWeights: the update, which holds other calls
  // back, is given up.
  absl::Duration weight_update_timeout = absl::Minutes(2);
  // The least average rate of such a client, over the time that the update waits for the client beyond
  // weight_update_timeout; the update of a slower client is given up.
  int64_t min_weight_update_bytes_per_s = 1 << 20;
  absl::Duration sse_keepalive = absl::Seconds(15);  // without an event of a stream, then a comment; 0: never
  // After a refusal the server reads and drops the bytes that the client still sends, so that the client can
  // read the response; a close with unread input would reset the connection. The server stops
  absl::Duration linger_timeout = absl::Seconds(10);  // after this time,
  absl::Duration linger_silence = absl::Seconds(2);   // when the client has sent nothing for this time,
  int64_t max_linger_bytes = 48 << 20;                // or after this many bytes
};

}  // namespace somnus
