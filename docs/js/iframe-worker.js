// Pages that are read from disk may not start workers. There, the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = frame.contentDocument.createElement("script")
      script.src = url
      this.ready = new Promise(resolve => (script.onload = resolve))
      frame.contentDocument.body.append(script)
    }
    async postMessage(data) {
      await this.ready
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }))
    }
  }
}
