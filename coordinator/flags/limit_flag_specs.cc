// The limits of requests and of connections, for the table of the coordinator's flags.
#include "absl/strings/str_cat.h"
#include "coordinator/flags/flag_specs.h"

namespace somnus {

FlagGroup RequestLimitFlags(ApiLimits* l) {
  return {
      "Limits of a request",
      {
          Flag::Bytes("max-body-bytes", &l->max_body_bytes, kMinBytesFlag, kMaxBytesFlag, "of its HTTP body"),
          Flag::Bytes("max-grpc-message-bytes", &l->max_grpc_message_bytes, kMinBytesFlag, kMaxBytesFlag,
                      "of its gRPC message, which may take 25 times that once it is parsed"),
          Flag::Int("max-header-bytes", &l->max_header_bytes, 1024, 1 << 24, "of its headers together"),
          Flag::Int("max-header-fields", &l->max_header_fields, 8, 1 << 16, "headers"),
          Flag::Int("max-json-depth", &l->max_json_depth, 8, 1000, "of its JSON"),
          Flag::Int("max-json-values", &l->max_json_values, 1000, 1 << 28, "of its JSON"),
          Flag::Int("max-n", &l->max_n, 1, 1 << 16, "choices per prompt"),
          Flag::Int("max-prompts", &l->max_prompts, 1, 1 << 20, "prompts"),
          Flag::Int("max-sequences", &l->max_sequences, 1, 1 << 20, "prompts times choices"),
          Flag::Int("max-prompt-logprobs", &l->max_prompt_logprobs, 1, int64_t{1} << 40,
                    "prompt log-probabilities: its prompts' tokens times choices and alternatives"),
          Flag::Int("max-stop-strings", &l->max_stop_strings, 1, 1 << 12, "stop strings"),
          Flag::Int("max-stop-string-bytes", &l->max_stop_string_bytes, 1, 1 << 16,
                    "bytes of one stop string"),
          Flag::Int("max-stop-token-ids", &l->max_stop_token_ids, 1, 1 << 20, "stop_token_ids"),
          Flag::Int("max-logit-bias", &l->max_logit_bias, 1, 1 << 20, "entries of logit_bias"),
          Flag::Int("max-allowed-token-ids", &l->max_allowed_token_ids, 1, 1 << 20, "allowed_token_ids"),
          Flag::Int("max-bad-words", &l->max_bad_words, 1, 1 << 12, "bad words"),
          Flag::Int("max-bad-word-tokens", &l->max_bad_word_tokens, 1, 1 << 12, "tokens of one bad word"),
          Flag::Time(
              "max-request-timeout", &l->max_request_timeout, absl::ZeroDuration(), kLongestTimeFlag,
              "from its arrival to its end, also where it sets no deadline or a later one; 0: no bound"),
      }};
}

FlagGroup ConnectionLimitFlags(ApiLimits* l) {
  const auto time = [](const char* name, absl::Duration* value, const char* help) {
    return Flag::Time(name, value, kShortestTimeFlag, kLongestTimeFlag, help).Alias(absl::StrCat(name, "-s"));
  };
  return {
      "Limits of connections",
      {
          Flag::Int("max-connections", &l->max_connections, 1, 1 << 20,
                    "on each HTTP port; above, the one that has been idle for longest is closed"),
          Flag::Int("max-open-calls", &l->max_open_calls, 1, 1 << 16, "gRPC streams at once"),
          Flag::Int("max-transition-watchers", &l->max_transition_watchers, 1, 1024,
                    "clients at once that watch a sleep or a wake-up by gRPC, each with a thread"),
          Flag::Int("max-lifecycle-calls", &l->max_lifecycle_calls, 2, 1024,
                    "calls of operators at once, of one kind and model, that are under way or wait, each "
                    "with a thread; "
                    "as many by HTTP as by gRPC"),
          Flag::Int("max-control-calls", &l->max_control_calls, 8, 1 << 16,
                    "gRPC calls of operators at once, of all kinds, each with a thread"),
          Flag::Int(
              "max-kv-event-watchers", &l->max_kv_event_watchers, 1, 1024,
              "clients at once that follow the prefix cache by gRPC, each with a thread, and as many by HTTP "
              "(--max-kv-events)"),
          Flag::Bytes("max-buffered-body-bytes", &l->max_buffered_body_bytes, kMinBytesFlag, int64_t{1} << 40,
                      "of all requests that are being read"),
          Flag::Bytes("max-response-bytes", &l->max_response_bytes, kMinBytesFlag, int64_t{1} << 40,
                      "of a response that waits for its end, or of a stream between two events"),
          Flag::Bytes("max-buffered-response-bytes", &l->max_buffered_response_bytes, kMinBytesFlag,
                      int64_t{1} << 40, "of all such responses together"),
          Flag::Int("max-stored-responses", &l->max_stored_responses, 0, 1 << 20,
                    "of /v1/responses, kept for later requests; 0: none"),
          Flag::Bytes("max-stored-response-bytes", &l->max_stored_response_bytes, kMinBytesFlag,
                      int64_t{1} << 40,
                      "of all responses that are kept; the one unused for longest goes above"),
          Flag::Bytes("max-stream-backlog-bytes", &l->max_stream_backlog_bytes, kMinBytesFlag, kMaxBytesFlag,
                      "output that a client has not read; its request ends above"),
          Flag::Bytes("max-queued-output-bytes", &l->max_queued_output_bytes, kMinBytesFlag, kMaxBytesFlag,
                      "output of one HTTP request that is not text yet; the request ends above"),
          time("header-timeout", &l->header_timeout,
               "from a request's first byte to the end of its headers; from a connection to the end of its "
               "TLS handshake"),
          time("body-timeout", &l->body_timeout, "from there to the end of its body"),
          time("idle-timeout", &l->idle_timeout, "between two requests of a connection"),
          time("write-timeout", &l->write_timeout, "without the client taking a byte"),
          time("weight-update-timeout", &l->weight_update_timeout,
               "without a message of a client that updates weights; then its update is given up"),
          Flag::Bytes("min-weight-update-rate", &l->min_weight_update_bytes_per_s, 1, int64_t{1} << 40,
                      "bytes a second that such a client sends on the whole, once it has had that time; "
                      "below, its update is "
                      "given up"),
          Flag::Time("sse-keepalive", &l->sse_keepalive, absl::ZeroDuration(), kLongestTimeFlag,
                     "a stream without an event for that long gets a comment, for proxies; 0: never")
              .Alias("sse-keepalive-s"),
          time("linger-timeout", &l->linger_timeout, "how long the rest of a refused request is still read"),
          time("linger-silence", &l->linger_silence, "until its client has been silent for that long"),
          Flag::Bytes("max-linger-bytes", &l->max_linger_bytes, kMinBytesFlag, kMaxBytesFlag,
                      "and how much of it"),
      }};
}

}  // namespace somnus
