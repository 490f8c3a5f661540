// Of the table of the coordinator's flags, what is about speculative decoding.
#include "coordinator/flag_specs.h"

namespace somnus {

FlagGroup SpeculationFlags(Flags* f) {
  return {"Speculative decoding",
          {
              Flag::Int(
                  "num-speculative-tokens", &f->num_speculative_tokens, 0, 64,
                  "tokens that one step guesses of a sequence and checks, at most; the answers are the same; "
                  "0: none"),
              Flag::OneOf<std::string>(
                  "speculative", &f->speculative, {{"ngram", "ngram"}},
                  "where guesses come from: what followed the last tokens where they occurred "
                  "before in prompt or output"),
              Flag::Int("prompt-lookup-min", &f->prompt_lookup_min, 1, 64,
                        "tokens that must have occurred before"),
              Flag::Int("prompt-lookup-max", &f->prompt_lookup_max, 1, 64,
                        "tokens, the last ones, of which the occurrence counts that agrees with the most"),
          }};
}

}  // namespace somnus
