// What GGUF metadata says about a model of the llama family.
#pragma once

#include "model/gguf.h"
#include "tersor/model.h"

namespace tersor::model::gguf {

/// Throws Error for architectures and options that are not supported, for missing required keys and for values that cannot be.
/// Missing optional keys take these values: key_length = embedding_length / head_count, head_count_kv = head_count, rope.freq_base 10000,
/// rope.dimension_count = key_length, context_length 2048, vocab_size = tokens, tokenizer.ggml.pre gpt-2.
Config read_config(const File& file);
/// Throws Error for tokenizers other than byte-level BPE. The tensors should have been checked first: they bound the vocabulary.
text::TokenizerData read_tokenizer(const File& file);

}  // namespace tersor::model::gguf
