#pragma once
// Writes the outputs of a request as the messages of a gateway's Generate call: chunks with new tokens, where
// the call is streamed, and a GenerateComplete at the end of each choice. For the call's own thread. Internal
// to coordinator/grpc/gateway.

#include <grpcpp/support/sync_stream.h>

#include <cstdint>
#include <vector>

#include "coordinator/grpc/calls/generate_call.h"
#include "coordinator/grpc/gateway/wire.h"

namespace somnus::gateway {

class ResponseWriter : public GenerateWriter {
 public:
  // Both must outlive the writer.
  ResponseWriter(GenerateCall* call, bool stream, ::grpc::ServerWriter<wire::GenerateResponse>* writer);

  bool Add(ChoiceUpdate update) override;
  bool Flush(bool) override { return true; }  // Add has written everything
  int64_t held_bytes() const override { return held_bytes_; }

 private:
  // A choice so far: the message at its end.
  struct Choice {
    wire::GenerateComplete complete;
    bool counted = false;  // cached_tokens is known
  };
  bool WriteChunk(const ChoiceUpdate& update, const Choice& choice);
  bool WriteComplete(const ChoiceUpdate& update, Choice* choice);
  bool Write(const ::grpc::WriteOptions& options);

  GenerateCall* const call_;
  const bool stream_;
  ::grpc::ServerWriter<wire::GenerateResponse>* const writer_;
  std::vector<Choice> choices_;
  int64_t held_bytes_ = 0;
  int32_t num_open_;
  wire::GenerateResponse response_;
};

}  // namespace somnus::gateway
