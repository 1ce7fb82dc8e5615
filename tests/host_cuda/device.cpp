// A CUDA device whose memory is the host's, for a PyTorch without CUDA: tensors lie on "cuda" and are computed by the kernels of the CPU.
//
// The dispatch key, the guard, the hooks, the allocator and the generators are CUDA's own places in PyTorch, which its CPU build leaves
// empty: autograd threads, autocast, views and torch.accelerator are then PyTorch's, and nothing of a project is changed. What a GPU
// refuses is refused: an operator on tensors of two devices, a generator of the host, a pinned tensor that is no host tensor, a
// collective on what NCCL cannot send. A copy to the host that does not block has its values only once something has waited for it.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/set_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/extension.h>
#include <torch/library.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace {

using at::Tensor;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::DispatchKey;
using c10::IValue;
using c10::Stream;

constexpr int kMostDevices = 64;

int64_t read_number(const char* name, int64_t fallback) {
  const char* value = std::getenv(name);
  return value == nullptr ? fallback : std::atoll(value);
}

DeviceIndex count_devices() {
  static const auto count = [] {
    auto there = read_number("HOST_CUDA_DEVICES", 1);
    if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
      const std::string names(visible);
      there = names.empty() ? 0 : std::min<int64_t>(there, 1 + std::count(names.begin(), names.end(), ','));
    }
    return static_cast<DeviceIndex>(there);
  }();
  return count;
}

int64_t read_memory_bytes() {
  static const int64_t size = read_number("HOST_CUDA_MEMORY_GIB", 80) << 30;
  return size;
}

// ---- devices and streams

thread_local DeviceIndex current = 0;
thread_local c10::StreamId streams[kMostDevices] = {};
std::atomic<c10::StreamId> next_stream{1};

c10::Device complete(c10::Device device) {
  return {DeviceType::CUDA, device.has_index() ? device.index() : current};
}

// ---- copies to the host that do not block: their values come when something waits for them

struct Copy {
  Tensor to, from;
};
std::mutex copies_mutex;
std::vector<Copy> copies;

void finish_copies() {
  std::vector<Copy> waiting;
  {
    std::lock_guard<std::mutex> lock(copies_mutex);
    waiting.swap(copies);
  }
  for (auto& copy : waiting) {
    copy.to.copy_(copy.from);
  }
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override {
    return DeviceType::CUDA;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return {DeviceType::CUDA, current};
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < count_devices(), "CUDA error: invalid device ordinal");
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) {
      current = device.index();
    }
  }
  Stream getStream(c10::Device device) const override {
    device = complete(device);
    return Stream(Stream::UNSAFE, device, streams[device.index()]);
  }
  Stream getDefaultStream(c10::Device device) const override {
    return Stream(Stream::UNSAFE, complete(device), 0);
  }
  Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  Stream getNewStream(c10::Device device, int) const override {
    return Stream(Stream::UNSAFE, complete(device), next_stream++);
  }
  Stream exchangeStream(Stream stream) const override {
    auto before = getStream(stream.device());
    streams[stream.device_index()] = stream.id();
    return before;
  }
  void record(void** event, const Stream&, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new double;
    }
    *static_cast<double*>(*event) =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  double elapsedTime(void* begin, void* end, const DeviceIndex) const override {
    return *static_cast<double*>(end) - *static_cast<double*>(begin);
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<double*>(event);
  }
  bool queryStream(const Stream&) const override {
    return true;
  }
  void synchronizeStream(const Stream&) const override {
    finish_copies();
  }
  void synchronizeEvent(void*) const override {
    finish_copies();
  }
  void synchronizeDevice(const DeviceIndex) const override {
    finish_copies();
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
  DeviceIndex deviceCount() const noexcept override {
    return count_devices();
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

// ---- memory

struct Counted {
  std::atomic<int64_t> current{0}, peak{0};
  void add(int64_t size) {
    int64_t now = current += size;
    int64_t before = peak;
    while (now > before && !peak.compare_exchange_weak(before, now)) {
    }
  }
};
Counted memory[kMostDevices];

struct Block {
  at::DataPtr data;
  int64_t size;
  DeviceIndex device;
};

void free_block(void* block) {
  auto* held = static_cast<Block*>(block);
  memory[held->device].add(-held->size);
  delete held;
}

c10::DataPtr put_on_device(at::DataPtr data, int64_t size, c10::Device device) {
  void* address = data.get();
  memory[device.index()].add(size);
  return {address, new Block{std::move(data), size, device.index()}, &free_block, device};
}

bool is_begun = false, is_forked = false;

/// A process that has used CUDA cannot hand it on by fork.
void begin() {
  TORCH_CHECK(
      !is_forked, "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method");
  is_begun = true;
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    begin();
    if (memory[current].current + static_cast<int64_t>(size) > read_memory_bytes()) {
      TORCH_CHECK_WITH(
          OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", size / double(1 << 20), " MiB.");
    }
    return put_on_device(c10::GetAllocator(DeviceType::CPU)->allocate(size), static_cast<int64_t>(size), {DeviceType::CUDA, current});
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      (*bytes)[0].current = memory[device].current;
      (*bytes)[0].peak = memory[device].peak;
    }
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex device) override {
    memory[device].peak = memory[device].current.load();
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    return {read_memory_bytes() - memory[device].current, read_memory_bytes()};
  }
};
Allocator allocator;
REGISTER_ALLOCATOR(DeviceType::CUDA, &allocator);

std::mutex pinned_mutex;
std::unordered_map<const void*, size_t> pinned;

void free_pinned(void* address) {
  {
    std::lock_guard<std::mutex> lock(pinned_mutex);
    pinned.erase(address);
  }
  std::free(address);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* address = std::malloc(size == 0 ? 1 : size);
    std::lock_guard<std::mutex> lock(pinned_mutex);
    pinned[address] = size;
    return {address, address, &free_pinned, {DeviceType::CPU}};
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
};
PinnedAllocator pinned_allocator;

// ---- random numbers: a generator of the device draws what one of the host would, and is none

struct Generator final : c10::GeneratorImpl {
  explicit Generator(DeviceIndex index)
      : GeneratorImpl({DeviceType::CUDA, index}, c10::DispatchKeySet(DispatchKey::CUDA)), host(at::detail::createCPUGenerator()) {}
  void set_current_seed(uint64_t seed) override {
    host.set_current_seed(seed);
  }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override {
    return 0;
  }
  uint64_t current_seed() const override {
    return host.current_seed();
  }
  uint64_t seed() override {
    return host.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    host.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device_.index());
    copy->host.set_state(host.get_state());
    return copy;
  }
  at::Generator host;
};

const at::Generator& get_default_generator(DeviceIndex index) {
  static std::vector<at::Generator> generators = [] {
    std::vector<at::Generator> made;
    for (DeviceIndex at = 0; at < count_devices(); ++at) {
      made.push_back(at::make_generator<Generator>(at));
    }
    return made;
  }();
  return generators.at(index < 0 ? current : index);
}

} // namespace

namespace at {
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(DeviceIndex) const override {
    return true;
  }
  bool hasCUDA() const override {
    return true;
  }
  DeviceIndex deviceCount() const override {
    return count_devices();
  }
  int getNumGPUs() const override {
    return count_devices();
  }
  DeviceIndex current_device() const override {
    return current;
  }
  DeviceIndex getCurrentDevice() const override {
    return current;
  }
  void setCurrentDevice(DeviceIndex device) const override {
    Guard().setDevice({DeviceType::CUDA, device});
  }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return Guard().exchangeDevice({DeviceType::CUDA, device}).index();
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  void deviceSynchronize(DeviceIndex) const override {
    finish_copies();
  }
  const Generator& getDefaultGenerator(DeviceIndex index) const override {
    return get_default_generator(index);
  }
  Generator getNewGenerator(DeviceIndex index) const override {
    return make_generator<::Generator>(index < 0 ? current : index);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_allocator;
  }
  c10::Allocator* getCUDADeviceAllocator() const override {
    return &allocator;
  }
  bool isPinnedPtr(const void* address) const override {
    std::lock_guard<std::mutex> lock(pinned_mutex);
    for (const auto& [begin, size] : pinned) {
      if (address >= begin && address < static_cast<const char*>(begin) + (size == 0 ? 1 : size)) {
        return true;
      }
    }
    return false;
  }
};
} // namespace at

namespace {

// ---- a tensor of the device as one of the host, and back

/// A storage of the device as one of the host, and the keys of a tensor in it, which its views have too.
struct Seen {
  c10::Storage storage;
  c10::DispatchKeySet keys;
};
using Storages = std::unordered_map<c10::StorageImpl*, Seen>;

Tensor make_alias(const Tensor& tensor, Storages& storages) {
  auto* held = tensor.storage().unsafeGetStorageImpl();
  auto found = storages.find(held);
  if (found == storages.end()) {
    auto* host = c10::GetAllocator(DeviceType::CPU);
    using Reference = c10::intrusive_ptr<c10::StorageImpl>;
    auto* reference = new Reference(Reference::reclaim_copy(held)); // what sends it may be the last to have it
    at::DataPtr data(held->mutable_data(), reference, [](void* of) { delete static_cast<Reference*>(of); }, {DeviceType::CPU});
    c10::Storage storage(c10::Storage::use_byte_size_t(), held->nbytes(), std::move(data), host, true);
    found = storages.emplace(held, Seen{std::move(storage), tensor.key_set()}).first;
  }
  auto alias = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(found->second.storage), c10::DispatchKeySet(DispatchKey::CPU), tensor.dtype());
  auto* impl = alias.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    impl->set_wrapped_number(true);
  }
  if (tensor.is_conj()) {
    alias._set_conj(true);
  }
  if (tensor.is_neg()) {
    alias._set_neg(true);
  }
  return alias;
}

Tensor see_on_host(const Tensor& tensor) {
  Storages storages;
  return tensor.is_cuda() ? make_alias(tensor, storages) : tensor;
}

c10::Storage put_storage_on_device(const c10::Storage& storage, c10::Device device) {
  auto* holder = new c10::Storage(storage);
  at::DataPtr data(storage.mutable_data(), holder, [](void* held) { delete static_cast<c10::Storage*>(held); }, {DeviceType::CPU});
  auto size = static_cast<int64_t>(storage.nbytes());
  return {c10::Storage::use_byte_size_t(), storage.nbytes(), put_on_device(std::move(data), size, device), &allocator, true};
}

Tensor put_on_device(const Tensor& tensor, c10::Device device, const Storages& storages) {
  TORCH_INTERNAL_ASSERT(tensor.layout() == at::kStrided, "only dense tensors");
  auto* held = tensor.storage().unsafeGetStorageImpl();
  Tensor result;
  for (const auto& [original, seen] : storages) {
    if (seen.storage.unsafeGetStorageImpl() == held && original->data() == held->data()) {
      c10::Storage storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(original));
      result = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, std::move(storage), seen.keys, tensor.dtype());
    }
  }
  if (!result.defined()) {
    auto storage = put_storage_on_device(tensor.storage(), device);
    result = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(DispatchKey::CUDA), tensor.dtype());
  }
  result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) {
    result._set_conj(true);
  }
  if (tensor.is_neg()) {
    result._set_neg(true);
  }
  return result;
}

/// What an operator did to an argument that it writes besides its values: another size, or other memory.
void take_over(const Tensor& tensor, const Tensor& alias) {
  auto* impl = tensor.unsafeGetTensorImpl();
  const auto& written = alias.storage();
  if (written.data() != tensor.storage().data() || written.nbytes() != tensor.storage().nbytes()) {
    auto moved = put_storage_on_device(written, tensor.device());
    auto* held = tensor.storage().unsafeGetStorageImpl();
    auto size = moved.nbytes();
    held->set_data_ptr_noswap(moved.set_data_ptr(at::DataPtr()));
    held->set_nbytes(size);
  }
  if (alias.sizes() != tensor.sizes() || alias.strides() != tensor.strides()) {
    impl->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
  }
}

// ---- every operator that is not below

bool takes_scalars_of_host(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string> names{
      "aten::fill_", "aten::masked_fill", "aten::masked_fill_", "aten::lerp", "aten::lerp_", "aten::index_put", "aten::index_put_",
      "aten::_index_put_impl_", "aten::where", "aten::clamp"};
  return op.hasTag(at::Tag::pointwise) || names.count(op.schema().name()) > 0;
}

bool takes_indices_of_host(const std::string& name) {
  return name == "aten::index" || name == "aten::index_put" || name == "aten::index_put_" || name == "aten::_index_put_impl_" ||
      name == "aten::_unsafe_index" || name == "aten::_unsafe_index_put";
}

struct Arguments {
  const c10::OperatorHandle& op;
  Storages storages;
  std::vector<std::pair<Tensor, Tensor>> written;
  std::optional<c10::Device> device;
  std::vector<Tensor> of_host;

  void look_at(const Tensor& tensor) {
    if (!tensor.defined()) {
      return;
    }
    if (!tensor.is_cuda()) {
      of_host.push_back(tensor);
      return;
    }
    TORCH_CHECK(
        !device || *device == tensor.device(), op.schema().name(), ": Expected all tensors to be on the same device, but found at least two devices, ",
        *device, " and ", tensor.device(), "!");
    device = tensor.device();
  }

  void look_at(const IValue& value) {
    if (value.isTensor()) {
      look_at(value.toTensor());
    } else if (value.isTensorList()) {
      for (const Tensor& tensor : value.toTensorVector()) {
        look_at(tensor);
      }
    } else if (value.isList() && value.toListRef().size() > 0 && !value.isIntList()) {
      for (const IValue& member : value.toListRef()) {
        if (member.isTensor()) {
          look_at(member);
        }
      }
    }
  }

  void refuse_others() const {
    const auto& name = op.schema().name();
    if (!device || takes_indices_of_host(name)) {
      return;
    }
    for (const Tensor& tensor : of_host) {
      bool is_scalar = tensor.dim() == 0 && (tensor.unsafeGetTensorImpl()->is_wrapped_number() || takes_scalars_of_host(op));
      TORCH_CHECK(
          is_scalar, name, ": Expected all tensors to be on the same device, but found at least two devices, ", *device, " and ",
          tensor.device(), "! (of the host: ", tensor.sizes(), " ", tensor.scalar_type(), ")");
    }
  }

  Tensor to_host(const Tensor& tensor, bool is_written) {
    if (!tensor.defined() || !tensor.is_cuda()) {
      return tensor;
    }
    auto alias = make_alias(tensor, storages);
    if (is_written) {
      written.emplace_back(tensor, alias);
    }
    return alias;
  }

  IValue to_host(const IValue& value, bool is_written) {
    if (value.isTensor()) {
      return to_host(value.toTensor(), is_written);
    }
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector()) {
        list.push_back(to_host(tensor, is_written));
      }
      return list;
    }
    if (value.isList() && value.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
      c10::List<std::optional<Tensor>> list;
      for (const IValue& member : value.toListRef()) {
        list.push_back(member.isTensor() ? std::optional<Tensor>(to_host(member.toTensor(), is_written)) : std::nullopt);
      }
      return list;
    }
    if (value.isDevice()) {
      return c10::Device(DeviceType::CPU);
    }
    if (value.isGenerator()) {
      auto generator = value.toGenerator();
      TORCH_CHECK(
          generator.device().is_cuda(), "Expected a 'cuda' device type for generator but found '", generator.device().type(), "'");
      return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->host;
    }
    return value;
  }
};

bool is_generator(const c10::Argument& argument) {
  auto type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  return type->kind() == c10::TypeKind::GeneratorType;
}

void compute_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const std::vector<IValue> given = torch::jit::last(stack, count).vec();
  Arguments arguments{op};
  for (const auto& value : given) {
    arguments.look_at(value);
  }
  arguments.refuse_others();
  for (const auto& value : given) {
    if (!arguments.device && value.isDevice() && value.toDevice().is_cuda()) {
      arguments.device = complete(value.toDevice());
    }
  }
  TORCH_CHECK(arguments.device, schema.name(), ": no argument is on cuda");
  const c10::DeviceGuard guard(*arguments.device);
  if (schema.name() == "aten::_local_scalar_dense") {
    finish_copies();
  }
  torch::jit::drop(*stack, count);
  for (size_t at = 0; at < count; ++at) {
    const auto& argument = schema.arguments()[at];
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (is_generator(argument) && given[at].isNone()) {
      stack->emplace_back(static_cast<Generator*>(get_default_generator(-1).unsafeGetGeneratorImpl())->host);
    } else {
      stack->push_back(arguments.to_host(given[at], is_written));
    }
  }
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    op.callBoxed(stack);
  }
  for (const auto& [tensor, alias] : arguments.written) {
    take_over(tensor, alias);
  }
  const size_t results = schema.returns().size();
  std::vector<IValue> computed = torch::jit::last(stack, results).vec();
  torch::jit::drop(*stack, results);
  for (size_t at = 0; at < results; ++at) {
    const auto* alias = schema.returns()[at].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      for (size_t of = 0; of < count; ++of) {
        const auto* other = schema.arguments()[of].alias_info();
        if (other != nullptr && other->isWrite() && other->beforeSets() == alias->beforeSets()) {
          stack->push_back(given[of]);
          break;
        }
      }
    } else if (computed[at].isTensor()) {
      const Tensor& tensor = computed[at].toTensor();
      stack->emplace_back(tensor.defined() ? put_on_device(tensor, *arguments.device, arguments.storages) : tensor);
    } else if (computed[at].isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : computed[at].toTensorVector()) {
        list.push_back(tensor.defined() ? put_on_device(tensor, *arguments.device, arguments.storages) : tensor);
      }
      stack->emplace_back(list);
    } else {
      stack->push_back(computed[at]);
    }
  }
}
TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_host>());
}

// ---- what allocates, and what moves between host and device

Tensor empty_memory_format(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<c10::Device> device,
    std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::DeviceGuard guard(complete(device.value_or(c10::Device(DeviceType::CUDA))));
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(DispatchKey::CUDA), c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<c10::Device> device, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::DeviceGuard guard(complete(device.value_or(c10::Device(DeviceType::CUDA))));
  return at::detail::empty_strided_generic(size, stride, &allocator, c10::DispatchKeySet(DispatchKey::CUDA), c10::dtype_or_default(dtype));
}

Tensor& copy(Tensor& to, const Tensor& from, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView below;
  auto target = see_on_host(to);
  if (non_blocking && to.is_cpu()) {
    auto value = see_on_host(from).clone();
    if (to.is_non_overlapping_and_dense() && to.numel() > 0) {
      std::memset(to.mutable_data_ptr(), 0x7f, to.nbytes());
    }
    std::lock_guard<std::mutex> lock(copies_mutex);
    copies.push_back({to.detach(), value});
    return to;
  }
  finish_copies(); // to the host it waits, to the device it is behind them in a stream
  target.copy_(see_on_host(from));
  return to;
}

Tensor& set_from_storage(Tensor& tensor, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(tensor, std::move(source), offset, size, stride);
}

Tensor& set_whole_storage(Tensor& tensor, at::Storage source) {
  auto size = static_cast<int64_t>(source.nbytes() / tensor.dtype().itemsize());
  return at::native::set_storage_cpu_(tensor, std::move(source), 0, {size}, {});
}

Tensor& set_empty(Tensor& tensor) {
  const c10::DeviceGuard guard(tensor.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, allocator.allocate(0), &allocator, true);
  return at::native::set_storage_cpu_(tensor, std::move(storage), 0, {0}, {});
}

void record_stream(Tensor&, Stream) {}

void resize_storage(const Tensor& tensor, int64_t size) {
  auto* held = tensor.storage().unsafeGetStorageImpl();
  const c10::DeviceGuard guard(tensor.device());
  auto data = allocator.allocate(size);
  if (size > 0 && held->nbytes() > 0) {
    std::memcpy(data.get(), held->data(), std::min<size_t>(size, held->nbytes()));
  }
  held->set_data_ptr_noswap(std::move(data));
  held->set_nbytes(size);
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty_memory_format);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy);
  library.impl("set_.source_Storage", &set_whole_storage);
  library.impl("set_.source_Storage_storage_offset", &set_from_storage);
  library.impl("set_.source_Tensor", &at::native::set_tensor_);
  library.impl("set_", &set_empty);
  library.impl("record_stream", &record_stream);
}

// ---- what stands in NCCL's place: Gloo, of tensors that NCCL would take

struct Done final : c10d::Work {
  Done(c10d::OpType kind, int rank, std::vector<Tensor> tensors) : Work(rank, kind), tensors_(std::move(tensors)) {
    std::vector<c10::Device> devices;
    for (const auto& tensor : tensors_) {
      if (devices.empty() || devices.back() != tensor.device()) {
        devices.push_back(tensor.device());
      }
    }
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    future_->markCompleted(IValue(tensors_));
    finish();
  }
  bool wait(std::chrono::milliseconds) override {
    return true;
  }
  void synchronize() override {}
  std::vector<Tensor> result() override {
    return tensors_;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }
  std::vector<Tensor> tensors_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

struct Nccl final : c10d::Backend {
  using Handle = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<Tensor>;

  explicit Nccl(c10::intrusive_ptr<c10d::Backend> gloo) : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}
  const std::string getBackendName() const override {
    return "nccl";
  }
  void setTimeout(std::chrono::milliseconds timeout) override {
    gloo_->setTimeout(timeout);
  }
  void eagerConnectSingleDevice(at::Device) override {}
  void setSequenceNumberForGroup() override {
    gloo_->setSequenceNumberForGroup();
  }
  uint64_t getSequenceNumberForGroup() override {
    return gloo_->getSequenceNumberForGroup();
  }
  void shutdown() override {
    gloo_->shutdown();
  }
  void abort() override {
    gloo_->abort();
  }

  Tensor send_from(const Tensor& tensor) const {
    static const std::unordered_set<at::ScalarType> types{
        at::kByte, at::kChar, at::kInt, at::kLong, at::kHalf, at::kFloat, at::kDouble, at::kBFloat16, at::kBool};
    TORCH_CHECK(tensor.is_cuda() && tensor.layout() == at::kStrided, "Tensors must be CUDA and dense");
    TORCH_CHECK(tensor.is_contiguous() || tensor.is_non_overlapping_and_dense(), "Tensors must be contiguous");
    TORCH_CHECK(
        types.count(tensor.scalar_type()) > 0 || c10::isFloat8Type(tensor.scalar_type()),
        "Input tensor data type is not supported for NCCL process group: ", tensor.scalar_type());
    static const int64_t local_rank = read_number("LOCAL_RANK", -1);
    TORCH_CHECK(
        local_rank < 0 || tensor.device().index() == local_rank, "Duplicate GPU detected : local rank ", local_rank, " sends from ",
        tensor.device());
    auto alias = see_on_host(tensor);
    // as NCCL sends it: the memory, whatever the strides
    return alias.is_contiguous() ? alias : alias.as_strided({alias.numel()}, {1});
  }
  Tensors send_from(const Tensors& tensors) const {
    Tensors aliases;
    for (const auto& tensor : tensors) {
      aliases.push_back(send_from(tensor));
    }
    return aliases;
  }
  std::vector<Tensors> send_from(const std::vector<Tensors>& lists) const {
    std::vector<Tensors> aliases;
    for (const auto& list : lists) {
      aliases.push_back(send_from(list));
    }
    return aliases;
  }
  static Tensors flatten(const std::vector<Tensors>& lists) {
    Tensors all;
    for (const auto& list : lists) {
      all.insert(all.end(), list.begin(), list.end());
    }
    return all;
  }
  Handle finish(c10d::OpType kind, const Handle& work, Tensors tensors) const {
    work->wait();
    return c10::make_intrusive<Done>(kind, getRank(), std::move(tensors));
  }
  /// Gloo has no mean.
  template <typename Options>
  bool ask_for_sum(Options& options) const {
    for (auto bitwise : {c10d::ReduceOp::BAND, c10d::ReduceOp::BOR, c10d::ReduceOp::BXOR}) {
      TORCH_CHECK(!(options.reduceOp == bitwise), "Cannot use ReduceOp.BAND, BOR or BXOR with NCCL");
    }
    const bool is_mean = options.reduceOp == c10d::ReduceOp::AVG;
    if (is_mean) {
      options.reduceOp = c10d::ReduceOp::SUM;
    }
    return is_mean;
  }
  void divide(bool is_mean, const Tensors& aliases) const {
    for (auto tensor : aliases) {
      if (is_mean) {
        tensor.div_(getSize());
      }
    }
  }

  Handle broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto aliases = send_from(tensors);
    return finish(c10d::OpType::BROADCAST, gloo_->broadcast(aliases, options), tensors);
  }
  Handle allreduce(Tensors& tensors, const c10d::AllreduceOptions& asked) override {
    auto options = asked;
    auto aliases = send_from(tensors);
    const bool is_mean = ask_for_sum(options);
    gloo_->allreduce(aliases, options)->wait();
    divide(is_mean, aliases);
    return c10::make_intrusive<Done>(c10d::OpType::ALLREDUCE, getRank(), tensors);
  }
  Handle allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    for (auto& tensor : tensors) {
      Tensors one{tensor};
      allreduce(one, options);
    }
    return c10::make_intrusive<Done>(c10d::OpType::ALLREDUCE_COALESCED, getRank(), tensors);
  }
  Handle reduce(Tensors& tensors, const c10d::ReduceOptions& asked) override {
    auto options = asked;
    auto aliases = send_from(tensors);
    const bool is_mean = ask_for_sum(options);
    gloo_->reduce(aliases, options)->wait();
    divide(is_mean && getRank() == options.rootRank, aliases);
    return c10::make_intrusive<Done>(c10d::OpType::REDUCE, getRank(), tensors);
  }
  Handle allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto to = send_from(outputs);
    auto from = send_from(inputs);
    return finish(c10d::OpType::ALLGATHER, gloo_->allgather(to, from, options), flatten(outputs));
  }
  Handle _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) override {
    auto to = send_from(output), from = send_from(input).clone();
    return finish(c10d::OpType::_ALLGATHER_BASE, gloo_->_allgather_base(to, from, options), {output});
  }
  Handle allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    for (size_t at = 0; at < outputs.size(); ++at) {
      _allgather_base(outputs[at], inputs[at], options);
    }
    return c10::make_intrusive<Done>(c10d::OpType::COALESCED, getRank(), outputs);
  }
  Handle gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    auto to = send_from(outputs);
    auto from = send_from(inputs);
    return finish(c10d::OpType::GATHER, gloo_->gather(to, from, options), flatten(outputs));
  }
  Handle scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    auto to = send_from(outputs);
    auto from = send_from(inputs);
    return finish(c10d::OpType::SCATTER, gloo_->scatter(to, from, options), outputs);
  }
  Handle reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& asked) override {
    auto whole = at::cat(send_from(inputs.at(0)));
    auto to = send_from(outputs.at(0));
    reduce_scatter_on_host(to, whole, asked);
    return c10::make_intrusive<Done>(c10d::OpType::REDUCE_SCATTER, getRank(), outputs);
  }
  Handle _reduce_scatter_base(Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& asked) override {
    auto to = send_from(output), whole = send_from(input).clone();
    reduce_scatter_on_host(to, whole, asked);
    return c10::make_intrusive<Done>(c10d::OpType::_REDUCE_SCATTER_BASE, getRank(), Tensors{output});
  }
  Handle reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    for (size_t at = 0; at < outputs.size(); ++at) {
      _reduce_scatter_base(outputs[at], inputs[at], options);
    }
    return c10::make_intrusive<Done>(c10d::OpType::COALESCED, getRank(), outputs);
  }
  void reduce_scatter_on_host(Tensor& to, Tensor& whole, const c10d::ReduceScatterOptions& asked) {
    c10d::AllreduceOptions options;
    options.reduceOp = asked.reduceOp;
    options.timeout = asked.timeout;
    const bool is_mean = ask_for_sum(options);
    Tensors all{whole.reshape(-1)};
    gloo_->allreduce(all, options)->wait();
    to.view(-1).copy_(all[0].narrow(0, getRank() * to.numel(), to.numel()));
    divide(is_mean, {to});
  }
  Handle alltoall_base(
      Tensor& output, Tensor& input, std::vector<int64_t>& to_sizes, std::vector<int64_t>& from_sizes,
      const c10d::AllToAllOptions& options) override {
    auto to = send_from(output), from = send_from(input);
    return finish(c10d::OpType::ALLTOALL_BASE, gloo_->alltoall_base(to, from, to_sizes, from_sizes, options), {output});
  }
  Handle alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    auto to = send_from(outputs), from = send_from(inputs);
    std::vector<int64_t> to_sizes, from_sizes;
    Tensors flat;
    for (size_t at = 0; at < from.size(); ++at) {
      flat.push_back(from[at].reshape(-1));
      from_sizes.push_back(from[at].numel());
      to_sizes.push_back(to[at].numel());
    }
    auto sent = at::cat(flat);
    int64_t size = 0;
    for (auto one : to_sizes) {
      size += one;
    }
    auto received = at::empty({size}, sent.options());
    gloo_->alltoall_base(received, sent, to_sizes, from_sizes, options)->wait();
    int64_t begin = 0;
    for (auto& tensor : to) {
      tensor.view(-1).copy_(received.narrow(0, begin, tensor.numel()));
      begin += tensor.numel();
    }
    return c10::make_intrusive<Done>(c10d::OpType::ALLTOALL, getRank(), outputs);
  }
  Handle send(Tensors& tensors, int to, int tag) override {
    auto aliases = send_from(tensors);
    return gloo_->send(aliases, to, tag);
  }
  Handle recv(Tensors& tensors, int from, int tag) override {
    auto aliases = send_from(tensors);
    return gloo_->recv(aliases, from, tag);
  }
  Handle barrier(const c10d::BarrierOptions& options) override {
    auto without_devices = options;
    without_devices.device_ids.clear();
    return finish(c10d::OpType::BARRIER, gloo_->barrier(without_devices), {});
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
};

} // namespace

// DistributedDataParallel's, which is no use without
namespace c10d {
struct HostCudaTimer final : Timer {
  explicit HostCudaTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    return getTimeRef(end) - getTimeRef(start);
  }
};
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, HostCudaTimer);
} // namespace c10d

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  // PyTorch has asked its registry before this is loaded, and keeps what it then got: an object without members
  static_assert(sizeof(at::CUDAHooks) == sizeof(at::CUDAHooksInterface));
  new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) at::CUDAHooks({});
  pthread_atfork(nullptr, nullptr, [] { is_forked = is_begun; });
  module.def("is_forked", [] { return is_forked; });
  module.def("count_devices", [] { return static_cast<int>(count_devices()); });
  module.def("get_memory_bytes", &read_memory_bytes);
  module.def("get_device", [] { return static_cast<int>(current); });
  module.def("set_device", [](int device) { Guard().setDevice({DeviceType::CUDA, static_cast<DeviceIndex>(device)}); });
  module.def("set_stream", [](int64_t stream, int device) { streams[device] = stream; });
  module.def("get_stream", [](int device) { return streams[device]; });
  module.def("finish_copies", &finish_copies);
  module.def("get_default_generator", [](int device) { return get_default_generator(static_cast<DeviceIndex>(device)); });
  module.def("resize_storage", &resize_storage);
  module.def("make_nccl", [](const c10::intrusive_ptr<c10d::Backend>& gloo) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<Nccl>(gloo);
  });
}
