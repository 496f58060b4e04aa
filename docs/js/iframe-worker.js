// Pages that are read from disk may not start workers. There, the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      this.inside = new Promise(resolve => {
        frame.onload = () => {
          const script = frame.contentDocument.createElement("script")
          frame.contentWindow.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
          script.src = url
          script.onload = () => resolve(frame.contentWindow)
          frame.contentDocument.body.append(script)
        }
      })
      document.body.append(frame)
    }
    async postMessage(data) {
      const inside = await this.inside
      inside.dispatchEvent(new inside.MessageEvent("message", { data }))
    }
  }
}
