#pragma once
// Finds the tokens that end a turn by their text: GGUF files often name only some of these tokens, or a wrong
// token, and type some as ordinary text.

#include <cstdint>
#include <vector>

#include "checkpoint/tokenizer_data.h"

namespace somnus {

// Adds to data->end_token_ids every token that is a known end of a turn or of a text: control tokens, tokens
// of any type whose spelling no text has by chance, and tokens that the chat template writes. Ends that are
// no control tokens yet become control tokens, and so do ordinary tokens of the form <|...|> that the chat
// template writes; data->warnings names the changed tokens. Reads data->chat_template and data->added_tokens.
void FindEndMarkers(TokenizerData* data);

// The added tokens that are a known end of a turn or of a text, for files that name no end token at all.
std::vector<int32_t> EndMarkersOf(const TokenizerData& data);

// Adds `id` unless the id is negative or already in the list.
void AddEndToken(int32_t id, TokenizerData* data);

}  // namespace somnus
