#include "agent/runtime/stream.h"

#include "agent/core/text.h"
#include "agent/sys/log.h"

namespace berth::runtime {

std::string describe(const StreamId& id) {
    const char* name = id.kind == StreamKind::kStdin    ? "stdin"
                       : id.kind == StreamKind::kStdout ? "stdout"
                                                        : "stderr";
    std::string text = name;
    if (!id.exec.empty()) {
        text.append(" of exec ").append(core::quoted(id.exec)).append(" in ");
    } else {
        text.append(" of ");
    }
    return text.append(core::quoted(id.container));
}

StreamBase::StreamBase(StreamContext& context, StreamId id, uint32_t slot)
    : context_(context), id_(std::move(id)), slot_index_(slot), slot_(*context.ledger.find(slot)) {}

StreamBase::~StreamBase() {
    if (attachment_ != nullptr) attachment_->abort();
}

std::unique_ptr<Attachment> StreamBase::attach(sys::UniqueFd socket, std::optional<uint64_t> resume_offset) {
    close_attachment(core::Code::kAborted);
    auto attachment = std::make_unique<Attachment>(context_.loop, context_.keeper, context_.buffers, *this,
                                                   peer(), std::move(socket));
    attachment_ = attachment.get();
    core::Status status = prepare();
    if (status.ok()) status = check_offset(resume_offset);
    if (!status.ok()) {
        sys::log(sys::LogLevel::kWarn, "stream.attach", "%s: %s", describe(id_).c_str(),
                 status.error().message.c_str());
        close_attachment(status.error().code);
        return attachment;
    }
    on_attached(resume_offset);
    if (attachment_ != nullptr) attachment_->start();
    return attachment;
}

void StreamBase::on_gone(Attachment& attachment) {
    if (attachment_ != &attachment) return;
    attachment_ = nullptr;
    on_detached();
}

void StreamBase::close_attachment(core::Code code) {
    if (attachment_ == nullptr) return;
    std::exchange(attachment_, nullptr)->close_with(code);
    on_detached();
}

void StreamBase::quiesce() {
    released_ = true;
    if (attachment_ != nullptr) std::exchange(attachment_, nullptr)->abort();
    cancel_operations();
}

void StreamBase::release(core::Code code) {
    if (released_) return;
    released_ = true;
    close_attachment(code);
    cancel_operations();
    release_pipes();
    context_.ledger.free(slot_index_);
}

}  // namespace berth::runtime
