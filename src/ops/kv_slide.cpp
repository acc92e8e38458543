#include <mlx/backend/cpu/encoder.h>

#include <cstring>
#include <stdexcept>

#include "ops/kv.h"
#include "ops/node.h"

namespace tersor::ops {
namespace {

// Moves the blocks of tokens [tokens, count) of one head's keys or values to its start.
void slide(const codec::Layout& layout, uint8_t* blocks, int64_t tokens, int64_t count) {
  std::memmove(blocks, blocks + layout.bytes(tokens), layout.bytes(count) - layout.bytes(tokens));
}

// Inputs: the slab, perhaps a ticket. Output: the slab, sharing memory with the input.
class KvSlide : public Node {
 public:
  KvSlide(mx::Stream stream, const KvSlab& slab, int64_t tokens)
      : Node(stream), format_(slab.format), capacity_(slab.capacity), count_(slab.count), tokens_(tokens) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    outputs[0].copy_shared_buffer(inputs[0]);
    dispatch(mx::cpu::get_command_encoder(stream()),
             [format = format_, capacity = capacity_, count = count_, tokens = tokens_, data = outputs[0].data<uint8_t>()] {
               for (int i = 0; i < format->batch * format->heads; ++i) {
                 uint8_t* const head = data + static_cast<size_t>(i) * format->head_bytes(capacity);
                 slide(format->keys, head, tokens, count);
                 slide(format->values, head + format->values_offset(capacity), tokens, count);
               }
             });
  }
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("[kv_slide] the CPU kernel was asked to run on a GPU stream");
  }
  const char* name() const override { return "TersorKvSlide"; }
  int memory_of(int) const override { return 0; }
  bool repeats() const override { return false; }

 private:
  std::shared_ptr<const KvFormat> format_;
  int64_t capacity_, count_, tokens_;
};

}  // namespace

void kv_slide(KvSlab& slab, int64_t tokens, const std::optional<mx::array>& after, mx::StreamOrDevice s) {
  if (tokens < 0 || tokens > slab.count || tokens % slab.format->granularity() != 0)
    throw std::invalid_argument("[kv_slide] " + std::to_string(tokens) + " tokens cannot be dropped from a slab of " +
                                std::to_string(slab.count) + ": give whole blocks of " + std::to_string(slab.format->granularity()));
  if (tokens == 0) return;
  std::vector<mx::array> inputs{slab.data};
  if (after) inputs.push_back(*after);
  slab.data = mx::array(slab.data.shape(), mx::uint8, std::make_shared<KvSlide>(mx::to_stream(s), slab, tokens), std::move(inputs));
  slab.first += tokens;
  slab.count -= tokens;
}

}  // namespace tersor::ops
