#include "coordinator/responses/responses_request.h"

#include <optional>
#include <random>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/responses/chat_translation.h"
#include "coordinator/responses/responses_writer.h"

namespace somnus {
namespace {

// A client that knows an id may read the response, so that ids must be hard to guess.
std::string NewId() {
  std::random_device random;
  std::string id = "resp_";
  for (int i = 0; i < 6; ++i) absl::StrAppend(&id, absl::StrFormat("%08x", random()));
  return id;
}

ApiError NoPreviousResponse(absl::string_view problem) {
  ApiError error = BadRequest("previous_response_id", problem);
  error.code = "previous_response_not_found";
  return error;
}

using ConversationOrError = std::variant<Conversation, ApiError>;

ConversationOrError FindConversation(const std::string& previous_id, ResponseStore* store) {
  if (previous_id.empty()) return Conversation();
  std::optional<StoredResponse> previous = store->Find(previous_id);
  if (!previous.has_value())
    return NoPreviousResponse("The previous response does not exist, or is no longer kept");
  if (!previous->has_ended) return NoPreviousResponse("The previous response has not ended");
  if (!previous->conversation.has_value())
    return NoPreviousResponse("The previous response was cancelled, or has failed: name the response before");
  return *std::move(previous->conversation);
}

}  // namespace

GenerateOrError ParseResponsesRequest(absl::string_view body, const ServedModel& model,
                                      const ApiLimits& limits, std::shared_ptr<ResponseStore> store) {
  ResponsesRequestOrError read = ReadResponsesRequest(body, {limits.max_json_depth, limits.max_json_values},
                                                      store->keeps_any(), model.gate.max_keys);
  if (auto* error = std::get_if<ApiError>(&read)) return std::move(*error);
  auto& request = std::get<ResponsesRequest>(read);
  ConversationOrError found = FindConversation(request.previous_id, store.get());
  if (auto* error = std::get_if<ApiError>(&found)) return std::move(*error);
  auto& before = std::get<Conversation>(found);

  GenerateOrError parsed = ParseChatRequest(ChatBody(request, before), model, limits);
  if (auto* error = std::get_if<ApiError>(&parsed)) return InResponsesNames(std::move(*error));
  auto& params = std::get<GenerateParams>(parsed);
  params.response_id = NewId();
  auto context = std::make_shared<ResponseContext>();
  context->echo = std::move(request.echo);
  if (request.store) {
    context->store = std::move(store);
    context->before = std::move(before);
    context->input = std::move(request.messages);
  }
  params.make_writer = [context](const GenerateParams& own, const ServedModel& own_model) {
    return MakeResponsesWriter(own, own_model, context);
  };
  return parsed;
}

}  // namespace somnus
