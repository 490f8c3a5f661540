#include "coordinator/openai/grammar_request.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "coordinator/structured/grammar_cache.h"

namespace somnus {
namespace {

ApiError GrammarError(const absl::Status& status, const std::string& field) {
  if (absl::IsResourceExhausted(status) || absl::IsCancelled(status))
    return {503, CleanMessage(status.message()), field};
  return BadRequest(field, absl::StrCat(field, ": ", CleanMessage(status.message())));
}

void Finish(const ServedModel& model, std::shared_ptr<const CompiledGrammar> grammar,
            GenerateParams* params) {
  params->constraint = MakeAnswerConstraint(std::move(grammar), params->reasoning, model.tokenizer.get(),
                                            static_cast<int32_t>(MaskWords(model.config.vocab_size)));
}

}  // namespace

void SetConstraint(const ServedModel& model, GenerateParams* params, GrammarDone done) {
  if (!AwaitsGrammar(*params)) {
    if (params->reasoning.has_value() && params->reasoning->max_tokens.has_value())
      Finish(model, nullptr, params);
    return done(std::nullopt);
  }
  if (model.grammars == nullptr)
    return done(BadRequest(params->grammar->field, "this server has no structured outputs"));
  model.grammars->Get(params->grammar->source,
                      [&model, params, done = std::move(done)](GrammarCache::Result result) {
                        if (!result.ok()) return done(GrammarError(result.status(), params->grammar->field));
                        Finish(model, *std::move(result), params);
                        done(std::nullopt);
                      });
}

std::optional<ApiError> AwaitConstraint(const ServedModel& model, GenerateParams* params) {
  absl::Notification known;
  std::optional<ApiError> error;
  SetConstraint(model, params, [&](std::optional<ApiError> result) {
    error = std::move(result);
    known.Notify();
  });
  known.WaitForNotification();
  return error;
}

}  // namespace somnus
