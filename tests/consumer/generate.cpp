#include <cstdio>

#include <tersor/tersor.h>

using namespace tersor;

int main(int, char** arguments) {
  model::Transformer model(model::load(arguments[1]), ops::Policy::automatic);
  cache::KvCache cache = model.make_cache(cache::KvSpec::parse("turboquant:4,window=128"));
  const auto prompt = model.tokenizer().encode("A lighthouse is");
  const auto reply = model::generate(model, cache, prompt, {.max_tokens = 40});
  std::puts(reply.text.c_str());
}
