#pragma once
// Keeps the embedding of an Embed call, which has one input, for the call's only response. For the call's own
// thread. Internal to coordinator/grpc/gateway.

#include <utility>
#include <vector>

#include "coordinator/grpc/calls/generate_call.h"
#include "coordinator/grpc/gateway/wire.h"
#include "coordinator/openai/embeddings.h"

namespace somnus::gateway {

class EmbeddingKeeper : public GenerateWriter {
 public:
  // Both must outlive the keeper.
  EmbeddingKeeper(GenerateCall* call, wire::EmbedResponse* response) : call_(call), response_(response) {}

  bool Add(ChoiceUpdate update) override {
    const std::vector<float> numbers =
        FinishEmbedding(*call_->params().embedding, std::move(update.delta.pooled));
    *response_->mutable_embedding() = {numbers.begin(), numbers.end()};
    response_->set_embedding_dim(static_cast<uint32_t>(numbers.size()));
    response_->set_prompt_tokens(static_cast<uint32_t>(call_->request().prompt_tokens()));
    return true;
  }
  bool Flush(bool) override { return true; }

 private:
  GenerateCall* const call_;
  wire::EmbedResponse* const response_;
};

}  // namespace somnus::gateway
