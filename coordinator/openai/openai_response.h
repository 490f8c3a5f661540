#pragma once
// Writes the text that clients read: the JSON of a whole response, or the SSE events. The writer gets the
// updates of one ClientRequest, in order. Not thread safe; no I/O.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/openai/client_request.h"
#include "coordinator/openai/openai_request.h"

namespace somnus {

struct UsageCounts {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t reasoning_tokens = -1;  // of the completion tokens; -1: the answers are not taken apart
};

// Returns the end of a stream that failed: "data: {"error": ...}\n\ndata: [DONE]\n\n".
std::string StreamError(const ApiError& error);

class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  // Streaming: returns the bytes to send now ("data: {...}\n\n" events, maybe none). Not streaming: always
  // empty.
  virtual std::string OnUpdate(ChoiceUpdate update, const UsageCounts& usage) = 0;
  // To be called after every choice has finished. Returns the JSON body, or the stream's last events,
  // [DONE] among them where the API has that.
  virtual std::string Finish(const UsageCounts& usage) = 0;
  // Instead of Finish, for a stream that failed. Returns the last events of the stream.
  virtual std::string Fail(const ApiError& error) { return StreamError(error); }
  // From now on the last event of every choice has weight_version. 0: the event has none.
  void TellWeightsVersion(int64_t version) { weights_version_ = version; }
  // About how many bytes of JSON this object holds for Finish, or for a stream's next event.
  int64_t held_bytes() const { return held_bytes_; }
  // The error that takes the place of an answer that an operator has aborted; nullopt: the answer ends with
  // finish_reason "abort".
  virtual std::optional<ApiError> ErrorOfAbort() const { return std::nullopt; }

 protected:
  int64_t held_bytes_ = 0;
  int64_t weights_version_ = 0;
};

// `params` and `model` must outlive the writer.
std::unique_ptr<ResponseWriter> MakeResponseWriter(const GenerateParams& params, const ServedModel& model);

}  // namespace somnus
